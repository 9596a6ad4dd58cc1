package strict

import (
	"math"
	"regexp"
	"sync"
)

// Pattern is what a string may have to match: a regular expression that is compiled when it is first needed. To compile all those of a
// program takes longer than many of its commands, of which each needs only a few.
type Pattern struct {
	compiled func() *regexp.Regexp
	most     int
}

// Expression is a pattern for texts of any length. An expression that cannot be compiled panics when it is first needed; testenv/rules
// looks for such.
func Expression(expression string) Pattern { return Short(expression, math.MaxInt) }

// Short is a pattern for at most most bytes. To count in the expression itself, {1,1000}, would cost it memory for each
// of them for as long as the program runs.
func Short(expression string, most int) Pattern {
	return Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) }), most}
}

// MatchString reports whether a string matches.
func (p Pattern) MatchString(s string) bool { return len(s) <= p.most && p.compiled().MatchString(s) }

// Regexp is the regular expression.
func (p Pattern) Regexp() *regexp.Regexp { return p.compiled() }
