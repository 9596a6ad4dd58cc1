package compose

import (
	_ "embed"
	"strings"
)

// verdict is how a device treats a key.
type verdict string

const (
	handled  verdict = "handled"
	metadata verdict = "metadata" // accepted without effect
	packed   verdict = "packed"   // resolved when a component is packed; refused on a device
	refused  verdict = "refused"
)

// key is one row of keys.txt.
type key struct {
	paths   []string // the first names the row
	verdict verdict
	how     string   // handled, metadata: the effect; refused, packed: the reason
	hint    string   // refused, packed: what to do instead
	only    []string // possible values; nil: any that the translation accepts
	notice  bool     // add how as a notice whenever the key is used
}

//go:embed keys.txt
var keyTable string

// keys reads the decisions on every key of the Compose Specification. They are rarely needed, so they are not cached.
func keys() (out []key) {
	prefix := ""
	for line := range strings.Lines(keyTable) {
		line = strings.TrimSuffix(line, "\n")
		first, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || first == "#":
		case first == "in":
			prefix = rest
		case line[0] == '\t':
			out[len(out)-1].set(line[1:])
		default:
			k := key{verdict: verdict(first)}
			for path := range strings.FieldsSeq(rest) {
				k.paths = append(k.paths, prefix+path)
			}
			out = append(out, k)
		}
	}
	return out
}

// set reads a line below the paths of a row.
func (k *key) set(line string) {
	name, rest, _ := strings.Cut(line, ": ")
	switch {
	case k.how == "":
		k.how = line
	case name == "hint":
		k.hint = rest
	case name == "only":
		k.only = strings.Fields(rest)
	default:
		k.notice = line == "notice"
	}
}
