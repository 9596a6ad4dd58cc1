package strict_test

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

func TestPatterns(t *testing.T) {
	all, short := strict.Expression(`^[a-z]+$`), strict.Short(`^[a-z]+$`, 3)
	for text, want := range map[string][2]bool{
		"abc": {true, true}, "abcd": {true, false}, "ABC": {false, false}, "": {false, false}, strings.Repeat("a", 1<<16): {true, false},
	} {
		if got := [2]bool{all.MatchString(text), short.MatchString(text)}; got != want {
			t.Errorf("%.8q matches: %v, want %v", text, got, want)
		}
	}
	if text := all.Regexp().FindString("abc"); text != "abc" {
		t.Errorf("found %q", text)
	}
}

// A program pays only for what it uses.
func TestPatternIsCompiledAtItsFirstUse(t *testing.T) {
	wrong := strict.Short(`(`, 3) // is not compiled here
	if wrong.MatchString("abcd") {
		t.Error("a text that is too long matches")
	}
	defer func() {
		if recover() == nil {
			t.Error("an expression that is wrong was used")
		}
	}()
	wrong.MatchString("abc")
}
