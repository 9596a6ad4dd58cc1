package keyless

import (
	"fmt"
	"regexp"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const maxPatternBytes = 1 << 10

// Pattern is an exact name or an expression. The zero value matches nothing.
type Pattern struct {
	exact string
	expr  *regexp.Regexp
}

// Exact matches only one name.
func Exact(name string) (Pattern, error) {
	if name == "" {
		return Pattern{}, fmt.Errorf("%w: is empty", fault.ErrInvalid)
	}
	return Pattern{exact: name}, nil
}

// Matching matches all names that the RE2 expression matches completely. An expression that matches the
// empty name is rejected, because it usually matches everything.
func Matching(expr string) (Pattern, error) {
	if len(expr) > maxPatternBytes {
		return Pattern{}, fmt.Errorf("%w: more than %d bytes", fault.ErrTooLarge, maxPatternBytes)
	}
	if _, err := regexp.Compile(expr); err != nil { // without brackets around it, which could hide an error
		return Pattern{}, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	anchored, err := regexp.Compile(`\A(?:` + expr + `)\z`)
	if err != nil {
		return Pattern{}, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if anchored.MatchString("") {
		err := fmt.Errorf("%w: %q matches the empty name too", fault.ErrInvalid, expr)
		return Pattern{}, fault.WithHint(err, "write what the name must contain")
	}
	return Pattern{exact: expr, expr: anchored}, nil
}

// Match reports whether a name matches.
func (p Pattern) Match(name string) bool {
	if p.expr != nil {
		return p.expr.MatchString(name)
	}
	return p.exact != "" && name == p.exact
}

// IsZero reports whether the pattern is not set.
func (p Pattern) IsZero() bool { return p.exact == "" && p.expr == nil }

// String is the name, or the expression between slashes.
func (p Pattern) String() string {
	if p.expr != nil {
		return "/" + p.exact + "/"
	}
	return p.exact
}
