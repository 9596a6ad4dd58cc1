package strict

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// plainNumber is what every version of YAML, and JSON, reads as the same decimal number.
var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// numeric is what some version of YAML, or some reader, takes for a number.
var numeric = regexp.MustCompile(`^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?$|^[-+]?0[xXoObB][0-9a-fA-F_]+$`)

// YAML reads one YAML document. file is its name in errors. The error is an *[Error].
func YAML(file string, data []byte) (root *Node, err error) {
	d := open(file, data, true, MaxYAML)
	if err := d.err(); err != nil {
		return nil, err
	}
	if line := emptyRun(data); line > 0 {
		d.fault(Fault{Line: line, Column: 1, Message: fmt.Sprintf("more than %d empty lines in a row", maxEmptyRun)})
		return nil, d.err()
	}
	// The parser is a library that sees bytes from anywhere: should it panic, the document is refused, the agent lives on.
	defer func() {
		if r := recover(); r != nil {
			d.fault(Fault{Message: "cannot be read as YAML"})
			root, err = nil, d.err()
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if d.screen(tokens); d.err() != nil {
		return nil, d.err()
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.fault(syntaxFault(err))
		return nil, d.err()
	}
	for _, doc := range f.Docs {
		if doc.Body != nil {
			root = d.yamlNode(doc.Body, &Node{}, 1)
			break
		}
	}
	if root == nil && d.err() == nil {
		d.fault(Fault{Message: "is empty"})
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return root, nil
}

// maxEmptyRun bounds empty lines in a row: the lexer's time grows with their square (65,536 of them take 15 s).
const maxEmptyRun = 100

// emptyRun finds the line at which too many empty lines in a row end; 0 when there is none.
func emptyRun(data []byte) int {
	run, line := 0, 1
	for _, b := range data {
		switch b {
		case '\n', '\r':
			if run++; run > 2*maxEmptyRun { // "\r\n" counts twice
				return line
			}
			if b == '\n' {
				line++
			}
		case ' ', '\t':
		default:
			run = 0
		}
	}
	return 0
}

// screen refuses, before the recursive parser sees them, tokens that have no place in a strict document, and nesting or
// size that would cost the parser its stack or much time.
func (d *document) screen(tokens token.Tokens) {
	var content, ended bool
	var flow, keys, run, runLine int
	for _, t := range tokens {
		at := func(format string, args ...any) {
			d.fault(Fault{Line: t.Position.Line, Column: t.Position.Column, Message: fmt.Sprintf(format, args...)})
		}
		switch t.Type {
		case token.AnchorType:
			at("anchors are not allowed")
		case token.AliasType:
			at("aliases are not allowed")
		case token.MergeKeyType:
			at("merge keys are not allowed")
		case token.TagType:
			at("tags are not allowed")
		case token.DirectiveType:
			at("directives are not allowed")
			return
		case token.DocumentHeaderType:
			if content {
				at("a second document begins; only one is allowed")
				return
			}
			continue
		case token.DocumentEndType:
			ended = true
			continue
		case token.CommentType:
			continue
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.MappingValueType:
			keys++
			if flow > 0 && gluedColon(t) {
				at(`a space must follow ":"`)
			}
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Line != runLine {
				run, runLine = 0, t.Position.Line
			}
			run++
		}
		if ended {
			at("a second document begins; only one is allowed")
			return
		}
		content = true
		if flow > MaxDepth || run > MaxDepth {
			at("nested deeper than %d", MaxDepth)
			return
		}
		if keys > maxKeys {
			at("more than %d keys", maxKeys)
			return
		}
	}
	if len(tokens) > 3*maxValues {
		d.fault(Fault{Message: fmt.Sprintf("more than %d values", maxValues)})
	}
}

// gluedColon finds "{a:b}", which the library reads as a key and a value, and YAML as the one key "a:b".
func gluedColon(t *token.Token) bool {
	if t.Prev == nil || t.Next == nil || t.Prev.Type == token.DoubleQuoteType || t.Prev.Type == token.SingleQuoteType {
		return false
	}
	switch t.Next.Type {
	case token.CollectEntryType, token.MappingStartType, token.MappingEndType, token.SequenceStartType, token.SequenceEndType:
		return false
	}
	return t.Next.Position.Line == t.Position.Line && t.Next.Position.Column == t.Position.Column+1
}

// syntaxWords says what the parser's words mean for those who write a file by hand, and what they can do.
var syntaxWords = func() map[string][2]string {
	tab := [2]string{"a tab, where only spaces may stand", "indent with spaces"}
	column := [2]string{"belongs to nothing that stands above it", "members of one mapping begin in the same column, below their key"}
	return map[string][2]string{
		"found character '\t' that cannot start any token":             tab,
		"found a tab character where an indentation space is expected": tab,
		"sequence end token ']' not found":                             {`"[" without its "]"`, ""},
		"',' or ']' must be specified":                                 {`"," or "]" is missing`, "quote a text that has one of [ ] { } , in it"},
		"could not find flow mapping end token '}'":                    {`"{" without its "}"`, ""},
		"',' or '}' must be specified":                                 {`"," or "}" is missing`, "quote a text that has one of [ ] { } , in it"},
		"unexpected map key":                                           column,
		"non-map value is specified":                                   column,
		"value is not allowed in this context":                         column,
		"mapping value is not allowed in this context":                 {`": " where none may stand`, `quote a text that has ": " in it; begin members of one mapping in the same column`},
	}
}()

func syntaxFault(err error) Fault {
	var at interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if !errors.As(err, &at) || at.GetToken() == nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return Fault{Message: line}
	}
	p := at.GetToken().Position
	f := Fault{Line: p.Line, Column: p.Column, Message: at.GetMessage()}
	if words, ok := syntaxWords[f.Message]; ok {
		f.Message, f.Hint = words[0], words[1]
	}
	return f
}

// yamlNode converts a parsed value. place carries parent, key and index.
func (d *document) yamlNode(v ast.Node, place *Node, depth int) *Node {
	n := place
	n.doc = d
	p := start(v)
	n.Line, n.Column = p.Line, p.Column
	if v.GetToken().Type == token.ImplicitNullType && n.KeyLine > 0 {
		n.Line, n.Column = n.KeyLine, n.KeyColumn // nothing stands there
	}
	if !d.value(n.Line, n.Column) {
		return n
	}
	if depth > MaxDepth {
		n.Faultf("nested deeper than %d", MaxDepth)
		return n
	}
	switch v := v.(type) {
	case *ast.NullNode:
		n.kind = Null
	case *ast.BoolNode:
		n.kind, n.truth = Bool, v.Value
	case *ast.IntegerNode:
		n.plain(v.Token.Value)
	case *ast.FloatNode:
		n.plain(v.Token.Value)
	case *ast.InfinityNode, *ast.NanNode:
		n.Faultf("is not a number that can be held")
	case *ast.StringNode:
		n.kind, n.text = String, v.Value
		if v.Token.Type == token.StringType && numeric.MatchString(v.Value) {
			n.plain(v.Value) // the library takes large and exponential numbers for strings
		}
	case *ast.LiteralNode:
		n.kind, n.text = String, v.Value.Value
	case *ast.SequenceNode:
		n.kind = List
		for i, item := range v.Values {
			n.items = append(n.items, d.yamlNode(item, &Node{parent: n, index: i}, depth+1))
		}
	case *ast.MappingNode:
		d.yamlObject(n, v.Values, depth)
	case *ast.MappingValueNode:
		d.yamlObject(n, []*ast.MappingValueNode{v}, depth)
	default:
		n.Faultf("is not allowed here")
	}
	return n
}

func (d *document) yamlObject(n *Node, values []*ast.MappingValueNode, depth int) {
	n.kind, n.members = Object, make(map[string]*Node, len(values))
	for _, kv := range values {
		p := kv.Key.GetToken().Position
		key, ok := kv.Key.(*ast.StringNode)
		if !ok || key.Token.Type == token.StringType && numeric.MatchString(key.Value) {
			d.fault(Fault{
				Line: p.Line, Column: p.Column, Path: n.Path(), Message: "keys must be strings",
				Hint: "put the key in quotes",
			})
			continue
		}
		m := &Node{parent: n, key: key.Value, KeyLine: p.Line, KeyColumn: p.Column}
		n.member(d.yamlNode(kv.Value, m, depth+1))
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

// start is where a value begins; the library's token of a block object is its first colon.
func start(v ast.Node) *token.Position {
	switch m := v.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return m.Values[0].Key.GetToken().Position
		}
	case *ast.MappingValueNode:
		return m.Key.GetToken().Position
	}
	return v.GetToken().Position
}
