package compose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/tree"
)

// shape says which keys of a value are known. A shape without fields, each and list is a value that the translation
// looks at whole.
type shape struct {
	key    *key              // nil: only on the way to others
	fields map[string]*shape // a mapping with these keys only
	each   *shape            // a mapping with names of the author's choice
	list   *shape            // a list
}

// preStart is where containers before a service's are described, with the keys of a service's own container.
const preStart = "services.*.pre_start.[]"

// notInPreStart are the keys of a service that its containers before it do not have.
func notInPreStart() []string {
	return []string{
		"attach", "build", "container_name", "depends_on", "deploy", "develop", "expose", "extends", "external_links", "healthcheck", "links",
		"ports", "post_start", "pre_stop", "pre_start", "profiles", "provider", "restart", "scale", "stdin_open", "tty", extOwnShim,
	}
}

// supported is what a file is held against.
func supported() *shape {
	root := &shape{}
	all := keys()
	for i := range all {
		for _, p := range all[i].paths {
			root.grow(p).key = &all[i]
		}
	}
	ours := key{verdict: handled}
	for _, p := range []string{
		"services.*." + extOwnShim, "services.*.healthcheck." + extProbe, "services.*.healthcheck." + extProbe + ".tcp",
		"services.*.healthcheck." + extProbe + ".http.port", "services.*.healthcheck." + extProbe + ".http.path",
	} {
		root.grow(p).key = &ours
	}
	service := root.grow("services.*")
	before := root.grow(preStart)
	for name, s := range service.fields {
		if before.fields[name] == nil && !slices.Contains(notInPreStart(), name) {
			before.fields[name] = s
		}
	}
	return root
}

// grow makes the way to a path.
func (s *shape) grow(path string) *shape {
	for _, part := range strings.Split(path, ".") {
		next := &s.each
		switch part {
		case "[]":
			next = &s.list
		case "*":
		default:
			if s.fields == nil {
				s.fields = map[string]*shape{}
			}
			if s.fields[part] == nil {
				s.fields[part] = &shape{}
			}
			s = s.fields[part]
			continue
		}
		if *next == nil {
			*next = &shape{}
		}
		s = *next
	}
	return s
}

// Extensions of our own. All others mean nothing to us and are left alone.
const (
	extPrefix  = "x-longshore-"
	extProbe   = "x-longshore-probe"    // in healthcheck: {http: {port, path}} or {tcp: port}, asked without tools in the image
	extOwnShim = "x-longshore-own-shim" // in a service: true keeps it out of the project's shared shim
)

// screen refuses every key that is not in s and takes it out of the tree, together with what means nothing. Values are
// looked at once variables are filled in: when d.filled.
func (d *document) screen(n *node, s *shape, pattern string) {
	switch {
	case n.kind == listKind && s.list != nil:
		for _, item := range n.items {
			d.screen(item, s.list, pattern+".*")
		}
	case n.kind == mapKind && s.fields != nil:
		d.screenFields(n, s, pattern)
	case n.kind == mapKind && s.each != nil:
		for _, k := range n.keys {
			d.screen(n.fields[k], s.each, join(pattern, "*"))
		}
	case d.filled && n.kind == scalarKind && s.key != nil && s.key.only != nil && n.value != nil && !slices.Contains(s.key.only, n.str()):
		d.fault(n, "", "%q is not possible here: %s", n.str(), s.key.how)
	}
}

func (d *document) screenFields(n *node, s *shape, pattern string) {
	for _, k := range slices.Clone(n.keys) {
		child := n.fields[k]
		sub, ok := s.fields[k]
		switch {
		case ok && (sub.key == nil || sub.key.verdict == handled):
			d.screen(child, sub, join(pattern, k))
			continue
		case ok && sub.key.verdict == metadata:
			if sub.key.notice {
				d.notice(child, "%s", sub.key.how)
			}
		case ok:
			d.fault(child, sub.key.hint, "%s", sub.key.how)
			if k == "build" && n.get("image") == nil {
				d.cut[n.path+".image"] = true // said already
			}
		case strings.HasPrefix(k, "x-") && !strings.HasPrefix(k, extPrefix):
		default:
			d.unknown(child, k, s, join(pattern, k))
		}
		n.drop(k)
	}
}

func (d *document) unknown(n *node, key string, s *shape, pattern string) {
	if specified(pattern) {
		d.fault(n, "", "not supported on a device yet")
		return
	}
	if near := closest(key, s.fields); near != "" {
		d.fault(n, "", "unknown key, did you mean %q?", near)
		return
	}
	d.fault(n, "", "unknown key")
}

// specified tells whether the Compose Specification knows a key, at this place or as a list's element.
func specified(pattern string) bool {
	want := tree.Path(pattern)
	return slices.ContainsFunc(schema.AttributePaths(), func(p tree.Path) bool {
		return p == want || strings.ReplaceAll(string(p), "[]", "*") == pattern
	})
}

func join(pattern, key string) string {
	if pattern == "" {
		return key
	}
	return pattern + "." + key
}

// closest is the key that a typing error most likely meant, "" when none is near.
func closest(key string, among map[string]*shape) string {
	best, dist := "", 3
	if len(key) < 5 {
		dist = 2
	}
	for k := range among {
		if d := distance(key, k); d < dist || d == dist && best != "" && k < best {
			best, dist = k, d
		}
	}
	return best
}

// distance counts the letters to change, add or take away (Levenshtein); two swapped neighbours count once. Keys in
// files are short; long ones are far.
func distance(a, b string) int {
	const tooLong = 40
	if len(a) > tooLong || len(b) > tooLong {
		return tooLong
	}
	for i := 0; i+1 < len(a); i++ {
		if a[:i]+a[i+1:i+2]+a[i:i+1]+a[i+2:] == b {
			return 1
		}
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}

func (d *document) fault(n *node, hint, format string, args ...any) {
	f := faultAt(n)
	f.Message, f.Hint = fmt.Sprintf(format, args...), hint
	d.faults = append(d.faults, f)
}

// notice tells of what is honoured in another way than its author may expect.
func (d *document) notice(n *node, format string, args ...any) {
	f := faultAt(n)
	f.Message = fmt.Sprintf(format, args...)
	if !slices.Contains(d.notices, f) {
		d.notices = append(d.notices, f)
	}
}
