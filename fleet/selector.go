package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// Selector is a condition on a device's labels, written as Kubernetes writes them:
//
//	site=graz, line in (a, b), tier!=test, canary, !retired
//
// All parts must hold. "device" and "group" can be asked like labels; a value may have "*" for any characters; "*" alone
// means every device. The zero Selector means no device.
type Selector struct {
	text  string
	all   bool
	parts []requirement
}

const (
	keyDevice = "device"
	keyGroup  = "group"
)

type requirement struct {
	key    string
	not    bool     // notin, !=, !key
	values []string // nil: the key is there
}

// String is the selector as it was written.
func (s Selector) String() string { return s.text }

// IsZero reports whether the selector is empty.
func (s Selector) IsZero() bool { return s.text == "" }

// ParseSelector reads a selector.
func ParseSelector(text string) (Selector, error) {
	s := Selector{text: strings.TrimSpace(text)}
	if s.text == "" {
		return Selector{}, fmt.Errorf(`is empty; "*" means every device`)
	}
	if s.text == "*" {
		s.all = true
		return s, nil
	}
	rest := s.text
	for {
		var r requirement
		var err error
		if r, rest, err = parseRequirement(rest); err != nil {
			return Selector{}, err
		}
		s.parts = append(s.parts, r)
		if rest == "" {
			return s, nil
		}
		if rest[0] != ',' {
			return Selector{}, fmt.Errorf("%q: a comma must stand between conditions", rest)
		}
		if rest = skip(rest[1:]); rest == "" {
			return Selector{}, fmt.Errorf("ends with a comma")
		}
	}
}

func parseRequirement(s string) (r requirement, rest string, err error) {
	if after, ok := strings.CutPrefix(s, "!"); ok {
		key, rest := token(skip(after))
		if key == "" {
			return r, "", fmt.Errorf(`%q: a label must follow "!"`, s)
		}
		return requirement{key: key, not: true}, skip(rest), nil
	}
	r.key, rest = token(s)
	if r.key == "" {
		return r, "", fmt.Errorf("%q: a label must stand here", s)
	}
	rest = skip(rest)
	for _, op := range []string{"!=", "==", "="} {
		after, ok := strings.CutPrefix(rest, op)
		if !ok {
			continue
		}
		value, rest := token(skip(after))
		if value == "" {
			return r, "", fmt.Errorf("%q: a value must follow %q", s, op)
		}
		r.not, r.values = op == "!=", []string{value}
		return r, skip(rest), nil
	}
	word, after := token(rest)
	if word != "in" && word != "notin" {
		return r, rest, nil // the key alone
	}
	r.not = word == "notin"
	after = skip(after)
	if !strings.HasPrefix(after, "(") {
		return r, "", fmt.Errorf(`%q: "(" must follow %q`, s, word)
	}
	list, rest, ok := strings.Cut(after[1:], ")")
	if !ok {
		return r, "", fmt.Errorf(`%q: ")" is missing`, s)
	}
	for v := range strings.SplitSeq(list, ",") {
		value, more := token(skip(v))
		if value == "" || skip(more) != "" {
			return r, "", fmt.Errorf("%q is no value", strings.TrimSpace(v))
		}
		r.values = append(r.values, value)
	}
	return r, skip(rest), nil
}

func skip(s string) string { return strings.TrimLeft(s, " \t\n") }

// token takes a label's key or value from the front.
func token(s string) (tok, rest string) {
	i := strings.IndexFunc(s, func(c rune) bool { return !tokenRune(c) })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}

func tokenRune(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._~/-*", c)
}

// validToken reports whether a label's key or value can be used in a selector.
func validToken(s string) bool {
	return s != "" && len(s) <= 253 && !strings.Contains(s, "*") && !strings.ContainsFunc(s, func(c rune) bool { return !tokenRune(c) })
}

// matches holds the selector against what get knows of each key.
func (s Selector) matches(get func(key string) []string) bool {
	if s.all {
		return true
	}
	for _, r := range s.parts {
		have := get(r.key)
		holds := len(have) > 0
		if r.values != nil {
			holds = slices.ContainsFunc(have, func(v string) bool {
				return slices.ContainsFunc(r.values, func(pattern string) bool { return like(pattern, v) })
			})
		}
		if holds == r.not {
			return false
		}
	}
	return len(s.parts) > 0
}

// named lists the selector's values of a key without "*", which must exist.
func (s Selector) named(key string) []string {
	var out []string
	for _, r := range s.parts {
		if r.key != key {
			continue
		}
		for _, v := range r.values {
			if !strings.Contains(v, "*") {
				out = append(out, v)
			}
		}
	}
	return out
}

// asks reports whether the selector has a condition on a key.
func (s Selector) asks(key string) bool {
	return slices.ContainsFunc(s.parts, func(r requirement) bool { return r.key == key })
}

// like compares a value with a pattern in which "*" matches any characters.
func like(pattern, value string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == value
	}
	value, ok := strings.CutPrefix(value, first)
	if !ok {
		return false
	}
	for {
		var part string
		part, rest, wild = strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(value, part)
		}
		i := strings.Index(value, part)
		if i < 0 {
			return false
		}
		value = value[i+len(part):]
	}
}
