package panel

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	maxMessages = 64 << 10
	maxMessage  = 500 // bytes of one text
)

// languageTag is what the attribute lang of a page may be, as far as it matters (BCP 47).
var languageTag = strict.Expression(`^[a-zA-Z]{2,8}(-[a-zA-Z0-9]{1,8})*$`)

var placeholder = strict.Expression(`\{[^{}]*\}`)

// Messages are the texts of the page in one language.
type Messages struct {
	Lang string // BCP 47
	text map[string]string
}

// ReadMessages reads a file of texts: YAML or JSON, a mapping of the keys of en.yaml in this folder to texts. Keys that it lacks are English. A key
// that there is not, and a text with other placeholders than the English one, is an error.
func ReadMessages(file string) (*Messages, error) {
	data, err := bounded.File(os.Open, file, maxMessages)
	if err != nil {
		return nil, fmt.Errorf("translations: %w", err)
	}
	base, err := English()
	if err != nil {
		return nil, err
	}
	return parseMessages(file, data, base)
}

// English are the texts of this program.
func English() (*Messages, error) {
	data, err := files.ReadFile("en.yaml")
	if err != nil {
		return nil, err
	}
	return parseMessages("en.yaml", data, nil)
}

// parseMessages reads texts; base has what they lack, and the placeholders that they need. nil: they need none.
func parseMessages(file string, data []byte, base *Messages) (*Messages, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	m := &Messages{text: map[string]string{}}
	if base != nil {
		m.Lang, m.text = base.Lang, maps.Clone(base.text)
	}
	if root.Kind() != strict.Object {
		root.Faultf("must be a mapping of keys to texts")
	}
	for _, n := range root.Members() {
		key, text := n.Key(), n.Filled()
		root.Get(key) // known, or told here
		switch {
		case key == "lang":
			if m.Lang = text; !languageTag.MatchString(text) {
				n.HintFaultf("write it like de or pt-BR", "not a language")
			}
			continue
		case len(text) > maxMessage:
			n.Faultf("has %d bytes, more than the %d that are allowed", len(text), maxMessage)
		case base == nil:
		case base.text[key] == "":
			n.Faultf("is no text of the page")
		default:
			want, got := placeholders(base.text[key]), placeholders(text)
			if text != "" && !slices.Equal(want, got) {
				n.Faultf("has the placeholders %v, want %v", got, want)
			}
		}
		m.text[key] = text
	}
	root.Close()
	return strict.Result(root, m)
}

// placeholders lists those of a text, each once.
func placeholders(text string) []string {
	all := placeholder.Regexp().FindAllString(text, -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// Text is the text of a key, with values in place of its placeholders: pairs of name and value.
func (m *Messages) Text(key string, values ...any) string {
	text, ok := m.text[key]
	if !ok {
		return key
	}
	var pairs []string
	for i := 0; i+1 < len(values); i += 2 {
		pairs = append(pairs, fmt.Sprintf("{%v}", values[i]), fmt.Sprint(values[i+1]))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// named is the text for a word of the agent: "state" and "installed". A word without a text stays.
func (m *Messages) named(group string, word any) string {
	text, ok := m.text[fmt.Sprintf("%s.%v", group, word)]
	if !ok {
		return fmt.Sprint(word)
	}
	return text
}
