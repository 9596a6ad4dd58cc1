package trust

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Inline makes a policy fit to travel: what it names by file comes inside, the rest of the text stays as it was written,
// comments too. A trusted root comes out beside it. file and read are as in [Parse].
func Inline(file string, data []byte, read func(path string) ([]byte, error)) (document, trustedRoot []byte, err error) {
	if _, err := Parse(file, data, read); err != nil { // every fault of the document, before one of ours
		return nil, nil, err
	}
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, nil, err
	}
	in := inliner{data: data, dir: filepath.Dir(file), read: read}
	lists := []*strict.Node{root.Get("keys"), root.Get("authorities")}
	for _, r := range root.Get("rules").Items() {
		lists = append(lists, r.Get("keys"))
	}
	for _, list := range lists {
		for _, n := range list.Items() {
			in.pem(n.Get("file"))
		}
	}
	if n := root.Get("trustedRoot").Get("file"); n != nil {
		if trustedRoot = in.open(n); n.Err() == nil {
			in.value(n, artifacts.TrustedRootFile)
		}
	}
	if err := root.Err(); err != nil {
		return nil, nil, err
	}
	if document = strict.Replace(data, in.edits); len(document) > artifacts.MaxTrustPolicy {
		return nil, nil, fmt.Errorf("%s: %d bytes with its keys, more than %d: %w", file, len(document), artifacts.MaxTrustPolicy, fault.ErrTooLarge)
	}
	if _, err := ParseTravelling(document, trustedRoot); err != nil {
		return nil, nil, fmt.Errorf("%s, with its keys inside: %w", file, err)
	}
	return document, trustedRoot, nil
}

type inliner struct {
	data  []byte
	dir   string
	read  func(path string) ([]byte, error)
	edits []strict.Replacement
}

func (in *inliner) open(n *strict.Node) []byte {
	path := n.Filled()
	if !filepath.IsAbs(path) {
		path = filepath.Join(in.dir, path)
	}
	data, err := in.read(path)
	if err != nil {
		n.Faultf("%v", err)
	}
	return data
}

// pem puts the content of a file in its place: both forms of YAML take a quoted string there.
func (in *inliner) pem(n *strict.Node) {
	if n == nil {
		return
	}
	data := in.open(n)
	key := strict.Offset(in.data, n.KeyLine, n.KeyColumn)
	end := key + len("file")
	if key >= 0 && (in.data[key] == '"' || in.data[key] == '\'') {
		end += 2
	}
	if key < 0 || end > len(in.data) || strings.Trim(string(in.data[key:end]), `"'`) != "file" {
		n.HintFaultf("write pem in its place", "cannot be replaced by what is in the file")
		return
	}
	if in.value(n, strings.ReplaceAll(string(data), "\r\n", "\n")) {
		in.edits = append(in.edits, strict.Replacement{From: key, To: end, Text: "pem"})
	}
}

// value replaces a string of one line.
func (in *inliner) value(n *strict.Node, by string) bool {
	quoted, err := json.Marshal(by)
	from := strict.Offset(in.data, n.Line, n.Column)
	to := -1
	if from >= 0 && err == nil {
		to = in.end(from, n.Text())
	}
	if to < 0 {
		n.HintFaultf("write pem in its place", "cannot be replaced by what is in the file")
		return false
	}
	in.edits = append(in.edits, strict.Replacement{From: from, To: to, Text: string(quoted)})
	return true
}

// end is where a string ends that begins at from: -1 when it is none of one line.
func (in *inliner) end(from int, text string) int {
	rest := in.data[from:]
	switch {
	case len(rest) == 0:
	case rest[0] == '"':
		for i := 1; i < len(rest) && rest[i] != '\n'; i++ {
			switch rest[i] {
			case '\\':
				i++
			case '"':
				return from + i + 1
			}
		}
	case rest[0] == '\'':
		for i := 1; i < len(rest) && rest[i] != '\n'; i++ {
			if rest[i] != '\'' {
				continue
			}
			if i+1 < len(rest) && rest[i+1] == '\'' {
				i++
				continue
			}
			return from + i + 1
		}
	case strings.HasPrefix(string(rest), text):
		return from + len(text)
	}
	return -1
}
