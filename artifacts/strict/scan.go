package strict

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// CheckYAML looks for what must not reach a YAML library in a document, which is UTF-8 text; nil when there is nothing. To
// go on after a fault is of no use. A document that [YAML] accepts has none.
//
// It finds characters that some readers of YAML take for the end of a line and others do not, byte order marks, directives
// and the non-specific tag; and what takes the library more time or memory than the length of the document explains:
// nesting deeper than [MaxDepth], lists and mappings as keys, too many values, indicators without values.
func CheckYAML(data []byte) []Fault {
	if f := ambiguous(data); f != nil {
		return []Fault{*f}
	}
	if f := scan(data, MaxDepth, maxValues); f != nil {
		return []Fault{*f}
	}
	return nil
}

// scan finds the first place where a document goes beyond the limits.
func scan(data []byte, depth, values int) *Fault {
	s := &scanner{data: data, depth: depth, most: values, indent: -1, allowed: true}
	for s.token() && s.fault == nil {
		if s.tokens++; s.tokens > maxTokens*(s.values+1) {
			s.fail(s.line, s.column, "a value is missing")
		}
	}
	return s.fault
}

// maxTokens is how many tokens a value can have at most, its key, tags and anchors included, with room to spare.
const maxTokens = 16

// ambiguous finds the first character that readers of YAML do not take for the same. YAML 1.1 ends lines at U+0085, U+2028
// and U+2029, YAML 1.2 does not; a byte order mark is skipped, or is part of a text.
func ambiguous(data []byte) *Fault {
	for i := 0; i < len(data); {
		if c := data[i]; c < utf8.RuneSelf {
			if c == '\r' && (i+1 == len(data) || data[i+1] != '\n') {
				line, column := position(data, i)
				return &Fault{
					Line: line, Column: column, Message: "a carriage return without a line feed",
					Hint: `end lines with a line feed; write "\r" in double quotes where the character is meant`,
				}
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(data[i:])
		message, hint := "", ""
		switch r {
		case '\u0085', '\u2028', '\u2029':
			message = fmt.Sprintf("%U ends a line for some readers of YAML and not for others", r)
			hint = fmt.Sprintf(`end lines with a line feed; write "\u%04x" in double quotes where the character is meant`, r)
		case '\ufeff':
			message, hint = "a byte order mark inside the text", `write "\ufeff" in double quotes where the character is meant`
			if i == 0 {
				message, hint = markMessage, markHint
			}
		}
		if message != "" {
			line, column := position(data, i)
			return &Fault{Line: line, Column: column, Message: message, Hint: hint}
		}
		i += size
	}
	return nil
}

// scanner finds the tokens of a document as the scanner of the YAML library does, with the same state, but keeps none of
// them. Where the library gives up, it may go on: the document is refused in either case.
type scanner struct {
	data         []byte
	depth, most  int // limits of collections around each other, and of values
	at           int
	line, column int // from 0, in characters

	flow     int   // open "[" and "{"
	indent   int   // column of the innermost block collection; -1: none
	indents  []int // of those around it
	allowed  bool  // a simple key may begin here
	possible bool  // key may turn out to be one
	key      simpleKey
	keys     []simpleKey // of the flow collections around
	last     byte        // indicator that the last token was; 0: none

	tokens int
	values int  // at most as many as the document has
	open   bool // the value that follows is counted already
	fault  *Fault
}

// simpleKey is a place where a key began, if ":" follows.
type simpleKey struct {
	required     bool
	flow         int
	line, column int
	open         bool // scanner.open at that place
}

// fail records the fault that ends the scan. line and column count from 0.
func (s *scanner) fail(line, column int, format string, args ...any) bool {
	s.fault = &Fault{Line: line + 1, Column: column + 1, Message: fmt.Sprintf(format, args...)}
	return false
}

// peek is a byte ahead, 0 at the end. The library takes no 0 as content.
func (s *scanner) peek(ahead int) byte {
	if s.at+ahead < len(s.data) {
		return s.data[s.at+ahead]
	}
	return 0
}

// char skips one character that is no line break.
func (s *scanner) char() {
	_, size := utf8.DecodeRune(s.data[s.at:])
	s.at += size
	s.column++
}

func (s *scanner) skip(ascii int) {
	s.at += ascii
	s.column += ascii
}

// newline skips a line break.
func (s *scanner) newline() {
	if s.data[s.at] == '\r' {
		s.at++
	}
	s.at++
	s.line, s.column = s.line+1, 0
}

func isBreak(c byte) bool { return c == '\n' || c == '\r' }

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func endsWord(c byte) bool { return c == 0 || isBlank(c) || isBreak(c) }

// rest skips to the end of the line.
func (s *scanner) rest() {
	for c := s.peek(0); c != 0 && !isBreak(c); c = s.peek(0) {
		s.char()
	}
}

// space skips to the next token.
func (s *scanner) space() {
	for {
		switch c := s.peek(0); {
		case isBlank(c):
			s.skip(1)
		case c == '#':
			s.rest()
		case isBreak(c):
			s.newline()
			s.allowed = s.allowed || s.flow == 0
		default:
			return
		}
	}
}

// marker reports whether "---" or "..." stands here.
func (s *scanner) marker() bool {
	rest := s.data[s.at:]
	return s.column == 0 && (bytes.HasPrefix(rest, []byte("---")) || bytes.HasPrefix(rest, []byte("..."))) && endsWord(s.peek(3))
}

// token skips one token; false at the end, where the library would give up, or at a fault.
func (s *scanner) token() bool {
	s.space()
	s.unroll(s.column)
	c, next := s.peek(0), s.peek(1)
	last := s.last
	s.last = c
	switch {
	case c == 0:
		return false
	case c == '%' && s.column == 0:
		return s.fail(s.line, s.column, "directives are not allowed")
	case s.marker():
		s.unroll(-1)
		s.allowed, s.open = false, false
		ok := s.removeKey()
		s.skip(3)
		return ok
	case c == '[' || c == '{':
		return s.begin()
	case c == ']' || c == '}':
		return s.end()
	case c == ',':
		s.allowed, s.open = true, false
		s.skip(1)
		return s.removeKey()
	case c == '-' && endsWord(next):
		return s.entry()
	case c == '?' && endsWord(next):
		return s.explicitKey()
	case c == ':' && (endsWord(next) || s.flow > 0 && last != '[' && last != ','):
		return s.value(last)
	case c == '|' && s.flow == 0, c == '>' && s.flow == 0:
		s.allowed = true
		return s.removeKey() && s.node(s.line, s.column) && s.block()
	case strings.IndexByte("#|>%@`", c) >= 0:
		return false
	}
	if !s.saveKey() {
		return false
	}
	s.allowed = false
	switch c {
	case '&':
		return s.name()
	case '*':
		return s.node(s.line, s.column) && s.name()
	case '!':
		return s.tag()
	case '\'', '"':
		return s.node(s.line, s.column) && s.quoted(c)
	}
	return s.node(s.line, s.column) && s.plain()
}

// node counts a value that begins.
func (s *scanner) node(line, column int) bool {
	if s.open {
		s.open = false
		return true
	}
	if s.values++; s.values > s.most {
		return s.fail(line, column, "more than %d values", s.most)
	}
	return true
}

// enter checks how deep the collection stands that was opened.
func (s *scanner) enter(line, column int) bool {
	if len(s.indents)+s.flow > s.depth {
		return s.fail(line, column, "nested deeper than %d", s.depth)
	}
	return s.node(line, column)
}

// roll opens a block collection when the column is right of the innermost.
func (s *scanner) roll(line, column int) (opened, ok bool) {
	if s.flow > 0 || s.indent >= column {
		return false, true
	}
	s.indents = append(s.indents, s.indent)
	s.indent = column
	return true, s.enter(line, column)
}

// unroll closes the block collections right of the column.
func (s *scanner) unroll(column int) {
	for s.flow == 0 && s.indent > column {
		s.indent = s.indents[len(s.indents)-1]
		s.indents = s.indents[:len(s.indents)-1]
	}
}

// saveKey notes that a key may begin here.
func (s *scanner) saveKey() bool {
	if !s.allowed {
		return true
	}
	if !s.removeKey() {
		return false
	}
	s.possible = true
	s.key = simpleKey{s.flow == 0 && s.indent == s.column, s.flow, s.line, s.column, s.open}
	return true
}

// removeKey reports whether the noted key may turn out to be none.
func (s *scanner) removeKey() bool {
	s.possible = s.possible && s.key.required
	return !s.key.required
}

func (s *scanner) begin() bool {
	if !s.saveKey() {
		return false
	}
	if s.flow++; s.possible {
		s.keys = append(s.keys, s.key)
	}
	s.key = simpleKey{}
	s.allowed = true
	if !s.enter(s.line, s.column) {
		return false
	}
	s.skip(1)
	return true
}

func (s *scanner) end() bool {
	if !s.removeKey() {
		return false
	}
	if s.flow > 0 {
		s.flow--
		if n := len(s.keys) - 1; n >= 0 && s.keys[n].flow == s.flow {
			s.key, s.keys, s.possible = s.keys[n], s.keys[:n], true
		}
	}
	s.allowed, s.open = false, false
	s.skip(1)
	return true
}

func (s *scanner) entry() bool {
	if s.flow == 0 {
		if !s.allowed {
			return false
		}
		if _, ok := s.roll(s.line, s.column); !ok {
			return false
		}
	}
	s.open = false
	if !s.node(s.line, s.column) || !s.removeKey() {
		return false
	}
	s.allowed, s.open = true, true
	s.skip(1)
	return true
}

func (s *scanner) explicitKey() bool {
	if s.flow == 0 {
		if !s.allowed {
			return false
		}
		if _, ok := s.roll(s.line, s.column); !ok {
			return false
		}
	}
	if !s.removeKey() {
		return false
	}
	s.allowed, s.open = s.flow == 0, false
	s.skip(1)
	return true
}

// value handles the ":" between a key and its value.
func (s *scanner) value(last byte) bool {
	if s.possible && s.key.line == s.line {
		if last == ']' || last == '}' {
			s.fail(s.key.line, s.key.column, keyMessage)
			s.fault.Hint = keyHint
			return false
		}
		opened, ok := s.roll(s.key.line, s.key.column)
		if !ok {
			return false
		}
		if !opened && s.flow == 0 && s.key.open {
			// The value that was expected is missing: the key belongs to the next member.
			if !s.node(s.key.line, s.key.column) {
				return false
			}
		}
		s.possible, s.key.required, s.allowed = false, false, false
	} else {
		if s.flow == 0 {
			if !s.allowed {
				return false
			}
			if _, ok := s.roll(s.line, s.column); !ok {
				return false
			}
		}
		s.allowed = s.flow == 0
	}
	s.open = true
	s.skip(1)
	return true
}

// name skips an anchor or an alias.
func (s *scanner) name() bool {
	s.skip(1)
	from := s.at
	for c := s.peek(0); c > ' ' && c < 0x7f && strings.IndexByte(":,[]{}", c) < 0; c = s.peek(0) {
		s.skip(1)
	}
	return s.at > from
}

// tag skips a tag. The non-specific one, "!", cannot be told from none in what the library gives.
func (s *scanner) tag() bool {
	from, line, column := s.at, s.line, s.column
	for !endsWord(s.peek(0)) {
		s.char()
	}
	switch string(s.data[from:s.at]) {
	case "!", "!<!>", "!<%21>":
		return s.fail(line, column, "tags are not allowed")
	}
	return true
}

// plain skips a text without quotes.
func (s *scanner) plain() bool {
	indent, broken := s.indent+1, false
	for !s.marker() && s.peek(0) != '#' {
		for c := s.peek(0); !endsWord(c); c = s.peek(0) {
			next := s.peek(1)
			if c == ':' && endsWord(next) || s.flow > 0 && (strings.IndexByte(",[]{}", c) >= 0 || c == '?' && endsWord(next)) {
				break
			}
			broken = false
			s.char()
		}
		if c := s.peek(0); !isBlank(c) && !isBreak(c) {
			break
		}
		for c := s.peek(0); isBlank(c) || isBreak(c); c = s.peek(0) {
			if isBlank(c) {
				s.skip(1)
				continue
			}
			s.newline()
			broken = true
		}
		if s.flow == 0 && s.column < indent {
			break
		}
	}
	s.allowed = s.allowed || broken
	return true
}

// quoted skips a text in quotes.
func (s *scanner) quoted(quote byte) bool {
	s.skip(1)
	for {
		switch c := s.peek(0); {
		case c == 0 || s.marker():
			return false
		case c == quote && quote == '\'' && s.peek(1) == '\'':
			s.skip(2)
		case c == quote:
			s.skip(1)
			return true
		case isBreak(c):
			s.newline()
		case c == '\\' && quote == '"':
			s.skip(1)
			if c := s.peek(0); c != 0 && !isBreak(c) {
				s.char()
			}
		default:
			s.char()
		}
	}
}

// block skips a literal or a folded text.
func (s *scanner) block() bool {
	s.skip(1)
	indent := 0
	for range 2 {
		switch c := s.peek(0); {
		case c == '+' || c == '-':
			s.skip(1)
		case c >= '1' && c <= '9' && indent == 0:
			indent = int(c - '0')
			s.skip(1)
		}
	}
	if indent > 0 {
		indent += max(s.indent, 0)
	}
	for isBlank(s.peek(0)) {
		s.skip(1)
	}
	if s.peek(0) == '#' {
		s.rest()
	}
	if !isBreak(s.peek(0)) {
		return false
	}
	s.newline()
	for indent = s.indentation(indent); s.column == indent && s.peek(0) != 0; indent = s.indentation(indent) {
		s.rest()
		if s.peek(0) != 0 {
			s.newline()
		}
	}
	return true
}

// indentation skips what stands before a line of a text, empty lines included. indent is that of the text; 0: the first line
// tells, and is returned.
func (s *scanner) indentation(indent int) int {
	deepest := 0
	for {
		for (indent == 0 || s.column < indent) && s.peek(0) == ' ' {
			s.skip(1)
		}
		deepest = max(deepest, s.column)
		if !isBreak(s.peek(0)) {
			break
		}
		s.newline()
	}
	if indent == 0 {
		return max(deepest, s.indent+1, 1)
	}
	return indent
}
