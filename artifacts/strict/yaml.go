package strict

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// plainNumber is what every version of YAML, and JSON, reads as the same decimal number.
var plainNumber = Expression(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// numeric is what some version of YAML, or some reader, takes for a number.
var numeric = Expression(`^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?$|^[-+]?0[xXoObB][0-9a-fA-F_]+$`)

// looksNumeric reports whether text is [numeric]. Most text is not, and its first byte says so without the expression.
func looksNumeric(text string) bool {
	return text != "" && strings.IndexByte("+-.0123456789", text[0]) >= 0 && numeric.MatchString(text)
}

// YAML reads one YAML document. file is its name in errors. The error is an *[Error].
func YAML(file string, data []byte) (root *Node, err error) {
	d := open(file, data, true, MaxYAML)
	if err := d.err(); err != nil {
		return nil, err
	}
	// The parser is a library that sees bytes from anywhere: should it panic, the document is refused, the agent lives on.
	defer func() {
		if r := recover(); r != nil {
			d.fault(Fault{Message: "cannot be read as YAML"})
			root, err = nil, d.err()
		}
	}()
	top, faults := Document(data)
	for _, f := range faults {
		d.fault(f)
	}
	if top != nil && !implicitNull(top) {
		root = d.yamlNode(top, &Node{}, 1)
	}
	if root == nil && d.err() == nil {
		d.fault(Fault{Message: "is empty"})
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return root, nil
}

// Document reads the one document in data, which is UTF-8 text, with the YAML library; nil without faults: there is none. It refuses
// what is nested deeper than [MaxDepth] collections of one kind, or costs the library more than its length explains.
func Document(data []byte) (*yaml.Node, []Fault) {
	if f := beforeYAML(data); f != nil {
		return nil, []Fault{*f}
	}
	var first, second yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(MaxDepth))))
	if err == nil {
		err = loader.Load(&first)
	}
	if errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, []Fault{syntaxFault(data, err)}
	}
	switch err := loader.Load(&second); {
	case err == nil:
		return nil, []Fault{{Line: max(second.Line, 1), Column: max(second.Column, 1), Message: secondDocument}}
	case !errors.Is(err, io.EOF):
		return nil, []Fault{syntaxFault(data, err)}
	case len(first.Content) != 1:
		return nil, nil
	}
	return first.Content[0], nil
}

const (
	keyMessage = "keys must be strings"
	keyHint    = "put the key in quotes"
)

const unknownToken = "a character that cannot begin a value"

var tabWords = [2]string{"a tab, where only spaces may stand", "indent with spaces"}

// syntaxWords says what the parser's words mean for those who write a file by hand, and what they can do.
var syntaxWords = func() map[string][2]string {
	column := [2]string{"belongs to nothing that stands above it", "members of one mapping begin in the same column, below their key"}
	return map[string][2]string{
		"found character that cannot start any token":                  {unknownToken, "put the text in quotes"},
		"found a tab character where an indentation space is expected": tabWords,
		"found a tab character that violates indentation":              tabWords,
		"did not find expected ',' or ']'":                             {`"," or "]" is missing`, "quote a text that has one of [ ] { } , in it"},
		"did not find expected ',' or '}'":                             {`"," or "}" is missing`, "quote a text that has one of [ ] { } , in it"},
		"did not find expected key":                                    column,
		"did not find expected '-' indicator":                          column,
		"could not find expected ':'":                                  {`a value without a key, or a key without its ":"`, column[1]},
		"mapping values are not allowed in this context":               {`": " where none may stand`, `quote a text that has ": " in it; begin members of one mapping in the same column`},
		fmt.Sprintf("exceeded max depth of %d", MaxDepth):              {fmt.Sprintf("nested deeper than %d", MaxDepth), ""},
		"found unexpected end of stream":                               {"a quoted text without its end", ""},
		"did not find expected node content":                           {"a value is missing", ""},
		"did not find expected <document start>":                       {secondDocument, ""},
	}
}()

const secondDocument = "a second document begins; only one is allowed"

// syntaxFault takes the place out of an error of the YAML library about data: that where the parser noticed it, or where what
// has no end begins.
func syntaxFault(data []byte, err error) Fault {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		return Fault{Line: 1, Column: 1, Message: err.Error()}
	}
	f := Fault{Line: e.Mark.Line, Column: e.Mark.Column, Message: e.Message}
	context := e.ContextMsg
	if words, known := syntaxWords[f.Message]; known {
		f.Message, f.Hint = words[0], words[1]
	}
	line, column := position(data, len(data))
	atEnd := f.Line > line || f.Line == line && f.Column >= column
	switch {
	case context == "while scanning a simple key", atEnd && context == "while scanning a quoted scalar":
		f.Line, f.Column = e.ContextMark.Line, e.ContextMark.Column
	case atEnd && context == "while parsing a flow sequence":
		f.Line, f.Column = e.ContextMark.Line, e.ContextMark.Column
		f.Message, f.Hint = `"[" without its "]"`, ""
	case atEnd && context == "while parsing a flow mapping":
		f.Line, f.Column = e.ContextMark.Line, e.ContextMark.Column
		f.Message, f.Hint = `"{" without its "}"`, ""
	case atEnd && context == "while parsing a flow node":
		rest := bytes.TrimSpace(data)
		f.Line, f.Column = position(data, bytes.LastIndexByte(data, rest[len(rest)-1]))
		f.Message = map[byte]string{'[': `"[" without its "]"`, '{': `"{" without its "}"`}[rest[len(rest)-1]]
		f.Message = cmp.Or(f.Message, `"[" or "{" without its end`)
	case f.Message == unknownToken && bytes.HasPrefix(lineOf(data, f.Line, f.Column), []byte("\t")):
		f.Message, f.Hint = tabWords[0], tabWords[1]
	}
	return f
}

// lineOf is what stands on a line from a column on.
func lineOf(data []byte, line, column int) []byte {
	n := 0
	for text := range bytes.Lines(data) {
		if n++; n == line {
			runes := []rune(string(text))
			return []byte(string(runes[min(column-1, len(runes)):]))
		}
	}
	return nil
}

// implicitNull reports whether nothing stands where a value could.
func implicitNull(v *yaml.Node) bool {
	return v.Kind == yaml.ScalarNode && v.Value == "" && v.ShortTag() == "!!null" && v.Style&yaml.TaggedStyle == 0
}

// yamlNode converts a parsed value. place carries parent, key and index.
func (d *document) yamlNode(v *yaml.Node, place *Node, depth int) *Node {
	n := place
	n.doc = d
	n.Line, n.Column = v.Line, v.Column
	if n.KeyLine > 0 && implicitNull(v) {
		n.Line, n.Column = n.KeyLine, n.KeyColumn // nothing stands there
	}
	if !d.value(n.Line, n.Column) {
		return n
	}
	if depth > MaxDepth {
		n.Faultf("nested deeper than %d", MaxDepth)
		return n
	}
	if !d.plainSyntax(v) {
		return n
	}
	switch v.Kind {
	case yaml.ScalarNode:
		n.yamlScalar(v)
	case yaml.SequenceNode:
		n.kind = List
		for i, item := range v.Content {
			n.items = append(n.items, d.yamlNode(item, &Node{parent: n, index: i}, depth+1))
		}
	case yaml.MappingNode:
		d.yamlObject(n, v, depth)
	default:
		n.Faultf("is not allowed here")
	}
	return n
}

// plainSyntax refuses what has no place in a strict document, and reports whether the value can be read all the same.
func (d *document) plainSyntax(v *yaml.Node) bool {
	refuse := func(what string) { d.fault(Fault{Line: v.Line, Column: v.Column, Message: what + " are not allowed"}) }
	if v.Anchor != "" && v.Kind != yaml.AliasNode {
		refuse("anchors")
	}
	if v.Style&yaml.TaggedStyle != 0 || v.Tag == "!" {
		refuse("tags")
	}
	if v.Kind == yaml.AliasNode {
		refuse("aliases")
		return false
	}
	return true
}

func (n *Node) yamlScalar(v *yaml.Node) {
	n.kind, n.text = String, v.Value
	if v.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return
	}
	switch tag := v.ShortTag(); {
	case strings.HasSuffix(v.Value, ":"): // "a::" is hardly ever what was meant
		n.Faultf(`a space must follow ":"`)
	case tag == "!!null":
		n.kind = Null
	case tag == "!!bool":
		n.kind, n.truth = Bool, strings.EqualFold(v.Value, "true")
	case looksNumeric(v.Value):
		n.plain(v.Value)
	case tag == "!!int", tag == "!!float":
		n.Faultf("is not a number that can be held")
	}
}

func (d *document) yamlObject(n *Node, v *yaml.Node, depth int) {
	content := v.Content
	n.kind, n.members = Object, make(map[string]*Node, len(content)/2)
	for i := 0; i+1 < len(content); i += 2 {
		key, value := content[i], content[i+1]
		var scalar Node
		if d.plainSyntax(key); key.Kind == yaml.ScalarNode {
			scalar.doc = d
			scalar.Line, scalar.Column = key.Line, key.Column
			if key.ShortTag() == "!!merge" {
				d.fault(Fault{Line: key.Line, Column: key.Column, Message: "merge keys are not allowed"})
				d.plainSyntax(value)
				continue
			}
			if key.Style != 0 || !looksNumeric(key.Value) {
				scalar.yamlScalar(key)
			}
		}
		if scalar.kind != String {
			n.fault(Fault{Line: key.Line, Column: key.Column, Message: keyMessage, Hint: keyHint})
			continue
		}
		// "{a:b}" is the key "a:b" to YAML, and hardly ever what was meant.
		if v.Style&yaml.FlowStyle != 0 && key.Style == 0 && implicitNull(value) && strings.Contains(strings.TrimSuffix(key.Value, ":"), ":") {
			scalar.Faultf(`a space must follow ":"`)
			continue
		}
		n.member(d.yamlNode(value, &Node{parent: n, key: key.Value, KeyLine: key.Line, KeyColumn: key.Column}, depth+1))
	}
}

// plain is a number when all readers of YAML agree on it.
func (n *Node) plain(text string) {
	if !plainNumber.MatchString(text) {
		n.HintFaultf("write a plain decimal number, or put the value in quotes",
			"%s is not the same number to every reader of YAML", quoted(text))
	}
	n.kind, n.text = Number, text
}
