package keyless

import (
	"fmt"
	"regexp"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const maxPatternBytes = 1 << 10

// Pattern is what one name must be. The zero value matches nothing.
type Pattern struct {
	exact string
	expr  *regexp.Regexp
}

// Exact matches one name and no other.
func Exact(name string) (Pattern, error) {
	if name == "" {
		return Pattern{}, fmt.Errorf("%w: is empty", fault.ErrInvalid)
	}
	return Pattern{exact: name}, nil
}

// Matching matches all names that the RE2 expression describes from their first byte to their last. What describes the
// empty name too is refused: such an expression mostly describes everything.
func Matching(expr string) (Pattern, error) {
	if len(expr) > maxPatternBytes {
		return Pattern{}, fmt.Errorf("%w: more than %d bytes", fault.ErrTooLarge, maxPatternBytes)
	}
	if _, err := regexp.Compile(expr); err != nil { // alone: a pair of brackets around it could mend it
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

// Match tells whether a name fits.
func (p Pattern) Match(name string) bool {
	if p.expr != nil {
		return p.expr.MatchString(name)
	}
	return p.exact != "" && name == p.exact
}

// IsZero tells whether the pattern was never set.
func (p Pattern) IsZero() bool { return p.exact == "" && p.expr == nil }

// String is the name, or the expression between slashes.
func (p Pattern) String() string {
	if p.expr != nil {
		return "/" + p.exact + "/"
	}
	return p.exact
}
