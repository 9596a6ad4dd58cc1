package fleet

import (
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// wanted is a version in the files.
type wanted struct {
	exact      string // a tag; "": constraint
	constraint *semver.Constraints
}

// parseVersion distinguishes an exact version, which is a tag, from a SemVer range.
func parseVersion(s string) (wanted, error) {
	if strings.ContainsAny(s, "<>=~^*|, ") || partial(s) {
		c, err := semver.NewConstraint(s)
		if err != nil {
			return wanted{}, fmt.Errorf("range %q: %w", s, err)
		}
		return wanted{constraint: c}, nil
	}
	tag := strings.ReplaceAll(s, "+", "_")
	if !tagFormat.MatchString(tag) {
		return wanted{}, fmt.Errorf("%q is no tag", s)
	}
	return wanted{exact: tag}, nil
}

// partial reports whether a version has an x, like 1.4.x, and so is a range.
func partial(s string) bool {
	for p := range strings.SplitSeq(s, ".") {
		if p == "x" || p == "X" {
			return true
		}
	}
	return false
}

// best is the highest tag in a range; "" if there is none.
func (w wanted) best(tags []string) string {
	var best *semver.Version
	tag := ""
	for _, t := range tags {
		v, err := semver.StrictNewVersion(strings.ReplaceAll(t, "_", "+"))
		if err != nil || !w.constraint.Check(v) {
			continue
		}
		if best == nil || v.GreaterThan(best) {
			best, tag = v, t
		}
	}
	return tag
}
