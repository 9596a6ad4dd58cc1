package compose

import (
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// shape has the known keys of a value. A shape without fields, each and list is a value that the translation reads completely.
type shape struct {
	key    *key              // nil: only a parent of others
	fields map[string]*shape // a mapping with these keys only
	each   *shape            // a mapping with arbitrary names
	list   *shape            // a list
}

// preStart is the path of init containers, which have the keys of a service's own container.
const preStart = "services.*.pre_start.[]"

// notInPreStart are the keys of a service that its init containers do not have.
func notInPreStart() []string {
	return []string{
		"attach", "build", "container_name", "depends_on", "deploy", "develop", "expose", "extends", "external_links", "healthcheck", "links",
		"ports", "post_start", "pre_stop", "pre_start", "profiles", "provider", "restart", "scale", "stdin_open", "tty", extOwnShim,
	}
}

// supported is the shape of a supported file.
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
	init := root.grow(preStart)
	for name, s := range service.fields {
		if init.fields[name] == nil && !slices.Contains(notInPreStart(), name) {
			init.fields[name] = s
		}
	}
	return root
}

// grow adds the shapes up to a path.
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

// Extensions of our own. All others are ignored.
const (
	extPrefix  = "x-longshore-"
	extProbe   = "x-longshore-probe"    // in healthcheck: {http: {port, path}} or {tcp: port}, probed without tools in the image
	extOwnShim = "x-longshore-own-shim" // in a service: true gives it a shim of its own
)

// screen reports every key that is not in s, and removes it and keys without effect from the tree. Values are checked after
// interpolation: when d.filled.
func (d *document) screen(n *composefile.Node, s *shape) {
	switch {
	case n.Kind == composefile.List && s.list != nil:
		for _, item := range n.Items {
			d.screen(item, s.list)
		}
	case n.Kind == composefile.Map && s.fields != nil:
		d.screenFields(n, s)
	case n.Kind == composefile.Map && s.each != nil:
		for _, k := range n.Keys {
			d.screen(n.Fields[k], s.each)
		}
	case d.filled && n.Kind == composefile.Scalar && s.key != nil && s.key.only != nil && n.Value != nil && !slices.Contains(s.key.only, n.Text()):
		d.Fault(n, s.key.how, "%q is not possible on a device: %s", composefile.Clip(n.Text()), alternatives(s.key.only))
	}
}

// alternatives lists values for a message: "bridge or host".
func alternatives(values []string) string {
	if len(values) == 1 {
		return "only " + values[0]
	}
	return "only " + strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

func (d *document) screenFields(n *composefile.Node, s *shape) {
	for _, k := range slices.Clone(n.Keys) {
		child := n.Fields[k]
		sub, ok := s.fields[k]
		switch {
		case ok && (sub.key == nil || sub.key.verdict == handled):
			d.screen(child, sub)
			continue
		case ok && sub.key.verdict == metadata:
			if sub.key.notice {
				d.Notice(child, "%s", sub.key.how)
			}
		case ok:
			d.Fault(child, sub.key.hint, "%s", sub.key.how)
			switch { // a key that is missing because of it is the same fault
			case (k == "build" || k == "provider") && n.Get("image") == nil:
				d.omitted[n.Path+".image"] = true
			case k == "external":
				d.omitted[n.Path] = true
			}
		case strings.HasPrefix(k, "x-") && !strings.HasPrefix(k, extPrefix):
		default:
			d.unknown(child, k, s)
		}
		n.Drop(k)
	}
}

func (d *document) unknown(n *composefile.Node, key string, s *shape) {
	if near := strict.Nearest(key, slices.Sorted(maps.Keys(s.fields))); near != "" {
		d.omitted[strings.TrimSuffix(n.Path, key)+near] = true // it is there under another name
		d.Fault(n, "", "unknown key, did you mean %q?", near)
		return
	}
	d.Fault(n, "", "unknown key")
}
