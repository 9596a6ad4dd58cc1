package strict

import "regexp"

// Pattern is what a string may have to match; a regular expression is one.
type Pattern interface{ MatchString(s string) bool }

// Short is a pattern for at most most bytes. To count in the expression itself, {1,1000}, would cost it memory for each
// of them for as long as the program runs.
func Short(expression string, most int) Pattern {
	return short{regexp.MustCompile(expression), most}
}

type short struct {
	*regexp.Regexp
	most int
}

func (p short) MatchString(s string) bool { return len(s) <= p.most && p.Regexp.MatchString(s) }
