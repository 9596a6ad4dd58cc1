package artifacts

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ignoreFile says what of a chart's directory does not belong to the chart.
const ignoreFile = ".helmignore"

// ignoreRules are those of Helm, which are fewer than git's: no "**", and a path that is not ignored anywhere above.
type ignoreRules []ignoreRule

type ignoreRule struct {
	pattern string
	negated bool // everything that does not match is ignored
	dirs    bool // directories only
	rooted  bool // of the whole path; else of the last element
}

// readIgnore reads the rules of a chart's directory. Hidden files among the templates are never part of it.
func readIgnore(fsys fs.FS) (ignoreRules, error) {
	rules := ignoreRules{{pattern: "templates/.?*", rooted: true}}
	data, err := fs.ReadFile(fsys, ignoreFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rules, nil
	}
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(strings.TrimPrefix(string(data), "\ufeff"), "\n") {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		r := ignoreRule{}
		text, r.negated = strings.CutPrefix(text, "!")
		text, r.dirs = strings.CutSuffix(text, "/")
		text, r.rooted = strings.CutPrefix(text, "/")
		r.rooted = r.rooted || strings.Contains(text, "/")
		r.pattern = text
		if _, err := path.Match(text, "a"); err != nil || strings.Contains(text, "**") {
			return nil, fmt.Errorf("%s:%d: %q: %w: not a pattern that Helm knows (it has no **)", ignoreFile, i+1, strings.TrimSpace(line), fault.ErrInvalid)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// ignores reports whether a file, or a directory with all that is below it, is left out.
func (rules ignoreRules) ignores(name string, dir bool) bool {
	for _, r := range rules {
		at := name
		if !r.rooted {
			at = path.Base(name)
		}
		matches, _ := path.Match(r.pattern, at) // it was tried when it was read
		switch {
		case r.negated:
			if r.dirs && !dir || !matches {
				return true
			}
		case r.dirs && !dir:
		case matches:
			return true
		}
	}
	return false
}

func (rules ignoreRules) leavesOut(e entry) bool {
	for dir := path.Dir(e.name); dir != "."; dir = path.Dir(dir) {
		if rules.ignores(dir, true) {
			return true
		}
	}
	return rules.ignores(e.name, e.dir)
}
