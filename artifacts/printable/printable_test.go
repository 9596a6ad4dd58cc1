package printable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/printable"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"plain – ünicode ✓ 漢字 \t\n": "plain – ünicode ✓ 漢字 \t\n",
		"\x1b[31mred\x1b]0;title\a": `\u001b[31mred\u001b]0;title\u0007`,
		"\x00\x7f\u0085\u009b31m":   `\u0000\u007f\u0085\u009b31m`,
		"abc\u202edcb\u2066\u200f":  `abc\u202edcb\u2066\u200f`,
		"\u2028\u2029\u061c":        `\u2028\u2029\u061c`,
		"one\r\ntwo\rthree\r":       "one\ntwo\\u000dthree\\u000d",
		"\x9b31m\xff\xe2\x80":       `\x9b31m\xff\xe2\x80`,
		"\uFFFD":                    "\uFFFD",
		"👩‍🏭":                       "👩‍🏭",
	} {
		if got := printable.Text(in); got != want || !printable.Safe(got) {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
		for name, from := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "in halves": iotest.HalfReader, "byte by byte": iotest.OneByteReader,
		} {
			var b bytes.Buffer
			w := printable.NewWriter(&b)
			_, err := io.Copy(w, from(bytes.NewReader([]byte(in))))
			if err = errors.Join(err, w.Flush(), w.Flush()); err != nil || b.String() != want {
				t.Errorf("written %s: %q, %v, want %q", name, b.String(), err, want)
			}
		}
	}
	if w := printable.NewWriter(io.Discard); printable.Raw(w) != io.Discard || printable.Raw(io.Discard) != io.Discard {
		t.Error("Raw is not what is below")
	}
}

// An error of a write that was ignored is not lost.
func TestFlushTellsIgnoredErrors(t *testing.T) {
	full := errors.New("no space left on device")
	w := printable.NewWriter(writerFunc(func([]byte) (int, error) { return 0, full }))
	fmt.Fprintln(w, "one")
	fmt.Fprintln(w, "two")
	if err := w.Flush(); !errors.Is(err, full) {
		t.Errorf("Flush = %v, want %v", err, full)
	}
	if err := w.Flush(); err != nil {
		t.Errorf("second Flush = %v", err)
	}
}

// writerFunc is a function that writes.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// JSON that passes through a writer says the same as before.
func TestDocuments(t *testing.T) {
	foreign := map[string]any{"a\u202eb": []any{"\x1b[31m", "x\ny\u009bz", "it's \u2066: #", "plain"}, "n": json.Number("18446744073709551615"), "z": nil}
	data, err := json.Marshal(foreign)
	if err != nil {
		t.Fatal(err)
	}
	safe := printable.Text(string(data))
	var back any
	if err := json.Unmarshal([]byte(safe), &back); err != nil || !printable.Safe(safe) {
		t.Fatalf("%s: %v", safe, err)
	}
	if diff := cmp.Diff(foreign["a\u202eb"], back.(map[string]any)["a\u202eb"]); diff != "" {
		t.Errorf("JSON says something else (-want +got):\n%s", diff)
	}
}
