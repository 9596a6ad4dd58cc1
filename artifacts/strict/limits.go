package strict

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// beforeYAML looks for what must not reach the YAML library in a document, which is UTF-8 text; nil: it has none of it. These are
// characters that some readers of YAML take for the end of a line and others do not, byte order marks, directives, and so many
// values that the library would need much memory.
func beforeYAML(data []byte) *Fault {
	if f := ambiguous(data); f != nil {
		return f
	}
	if f := directive(data); f != nil {
		return f
	}
	return tooMany(data, 2*maxValues)
}

// directive finds the first directive: a line that begins with "%", at the beginning or after the end of a document. The time that
// the library takes grows with the square of their number.
func directive(data []byte) *Fault {
	at, outside := 0, true
	for line := range bytes.Lines(data) {
		switch text := bytes.TrimSpace(line); {
		case bytes.HasPrefix(line, []byte("...")):
			outside = true
		case outside && line[0] == '%':
			line, column := position(data, at)
			return &Fault{Line: line, Column: column, Message: "directives are not allowed"}
		case len(text) > 0 && text[0] != '#':
			outside = false
		}
		at += len(line)
	}
	return nil
}

// tooMany finds the place where a document has more than most indicators: characters that begin, separate or name values. It counts
// those inside texts too. The library makes at most four values for each.
func tooMany(data []byte, most int) *Fault {
	for i, c := range data {
		switch c {
		case ',', '[', '{', '&', '*', '!':
		case ':', '-', '?':
			if i+1 < len(data) && !bytes.ContainsRune([]byte(" \t\r\n,[]{}"), rune(data[i+1])) && (c != ':' || i == 0 || data[i-1] != '"' && data[i-1] != '\'') {
				continue
			}
		default:
			continue
		}
		if most--; most < 0 {
			line, column := position(data, i)
			return &Fault{Line: line, Column: column, Message: fmt.Sprintf("more than %d places where a value can begin", 2*maxValues)}
		}
	}
	return nil
}

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
