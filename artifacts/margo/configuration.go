package margo

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Setting finds how a parameter is shown and the schema of its values; false when the configuration says nothing of it.
// A nil Configuration says nothing of any.
func (c *Configuration) Setting(parameter string) (ConfigurationSetting, ConfigurationSchema, bool) {
	if c == nil {
		return ConfigurationSetting{}, ConfigurationSchema{}, false
	}
	for _, s := range c.Sections {
		for _, set := range s.Settings {
			if set.Parameter != parameter {
				continue
			}
			i := slices.IndexFunc(c.Schema, func(s ConfigurationSchema) bool { return s.Name == set.Schema })
			if i < 0 { // the parser has refused it
				return set, ConfigurationSchema{}, false
			}
			return set, c.Schema[i], true
		}
	}
	return ConfigurationSetting{}, ConfigurationSchema{}, false
}

// Check tells why a value is none that the schema allows; "" when it is one. nil stands for no value. Strings have their
// lengths counted in characters; what a number is does not depend on how it is written, so trailing zeros satisfy
// minPrecision.
func (s ConfigurationSchema) Check(value any) string {
	kind, isList := s.DataType, s.Multiselect
	if element, ok := strings.CutPrefix(kind, "array["); ok {
		kind, isList = strings.TrimSuffix(element, "]"), true
	}
	items, list := value.([]any)
	switch {
	case value == nil || list && isList && len(items) == 0:
		if s.AllowEmpty {
			return ""
		}
		return "a value is needed"
	case !isList:
		return s.one(kind, value)
	case !list:
		return "must be a list, is " + spoken(value)
	}
	for i, item := range items {
		if why := s.one(kind, item); why != "" {
			return fmt.Sprintf("element %d: %s", i, why)
		}
		if s.Multiselect && slices.ContainsFunc(items[:i], func(other any) bool { return same(item, other) }) {
			return fmt.Sprintf("element %d: %s is there already", i, shown(item))
		}
	}
	return ""
}

// one checks a value that is no list.
func (s ConfigurationSchema) one(kind string, value any) string {
	var why string
	switch kind {
	case "string":
		why = s.text(value)
	case "boolean":
		if _, ok := value.(bool); !ok {
			why = "must be true or false, is " + spoken(value)
		}
	case "integer":
		if n, ok := number(value); !ok || !n.IsInt() {
			why = "must be a whole number, is " + spoken(value)
		} else {
			why = s.within(value, n)
		}
	case "double":
		if n, ok := number(value); !ok {
			why = "must be a number, is " + spoken(value)
		} else {
			why = s.within(value, n)
		}
	}
	if why == "" && s.Options != nil && !slices.ContainsFunc(s.Options, func(o any) bool { return same(value, o) }) {
		all := make([]string, 0, len(s.Options))
		for _, o := range s.Options {
			all = append(all, shown(o))
		}
		return fmt.Sprintf("%s is none of %s", shown(value), strings.Join(all, ", "))
	}
	return why
}

func (s ConfigurationSchema) text(value any) string {
	v, ok := value.(string)
	if !ok {
		return "must be a string, is " + spoken(value)
	}
	n := int64(utf8.RuneCountInString(v))
	switch {
	case n == 0 && s.AllowEmpty:
		return ""
	case n == 0:
		return "must not be empty"
	case s.MinLength != nil && n < *s.MinLength:
		return fmt.Sprintf("has %d characters, at least %d are asked for", n, *s.MinLength)
	case s.MaxLength != nil && n > *s.MaxLength:
		return fmt.Sprintf("has %d characters, at most %d are allowed", n, *s.MaxLength)
	case s.RegexMatch == "":
		return ""
	}
	re, err := regexp.Compile(s.RegexMatch)
	if err != nil {
		return fmt.Sprintf("cannot be checked: the schema's regexMatch %q is not understood", s.RegexMatch)
	}
	if !re.MatchString(v) {
		return fmt.Sprintf("%q does not match %s", v, s.RegexMatch)
	}
	return ""
}

func (s ConfigurationSchema) within(value any, n *big.Rat) string {
	bound := func(f *float64) string { return strconv.FormatFloat(*f, 'f', -1, 64) }
	least, most := new(big.Rat), new(big.Rat)
	switch {
	case s.MinValue != nil && n.Cmp(least.SetFloat64(*s.MinValue)) < 0:
		return fmt.Sprintf("%s is below %s", shown(value), bound(s.MinValue))
	case s.MaxValue != nil && n.Cmp(most.SetFloat64(*s.MaxValue)) > 0:
		return fmt.Sprintf("%s is above %s", shown(value), bound(s.MaxValue))
	}
	f, ok := value.(float64)
	if !ok || s.MaxPrecision == nil {
		return ""
	}
	_, digits, _ := strings.Cut(strconv.FormatFloat(f, 'f', -1, 64), ".")
	if int64(len(digits)) > *s.MaxPrecision {
		return fmt.Sprintf("%s has %d digits behind the point, at most %d are allowed", shown(value), len(digits), *s.MaxPrecision)
	}
	return ""
}

// shown is a value as JSON writes it.
func shown(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// spoken says what kind of value something is.
func spoken(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "the number " + shown(v)
}

// Summary says for people which values the schema allows.
func (s ConfigurationSchema) Summary() string {
	out := s.DataType
	if s.Multiselect {
		out = "several of " + out
	}
	number := func(f *float64) string {
		if f == nil {
			return ""
		}
		return strconv.FormatFloat(*f, 'f', -1, 64)
	}
	length := func(n *int64) string {
		if n == nil {
			return ""
		}
		return strconv.FormatInt(*n, 10)
	}
	between := func(least, most, unit string) {
		switch {
		case least != "" && most != "":
			out += " " + least + " to " + most + unit
		case least != "":
			out += " from " + least + unit
		case most != "":
			out += " up to " + most + unit
		}
	}
	between(number(s.MinValue), number(s.MaxValue), "")
	between(length(s.MinLength), length(s.MaxLength), " characters")
	if s.RegexMatch != "" {
		out += " like " + s.RegexMatch
	}
	if s.Options != nil {
		all := make([]string, 0, len(s.Options))
		for _, o := range s.Options {
			all = append(all, shown(o))
		}
		out += ": " + strings.Join(all, ", ")
	}
	if s.AllowEmpty {
		out += ", may be empty"
	}
	return out
}
