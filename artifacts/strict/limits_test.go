package strict_test

import (
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// The library makes at most four values for each indicator of a document, so that their number bounds its memory.
func FuzzValues(f *testing.F) {
	for _, s := range []string{
		"a: 1\nb: [x, {y: z}]\n", "a: &x 1\nb: *x\n", "- |\n  x\n- >-\n  y\n", "{\"a\": \"\\u00e4\"}", "a: b\r\n\r\nc: 'd\n  e'\n", "? a\n: b\n", "a: !!str 1",
		"---\na: b\n...\n", "a:\n- b\n-\n- - c\n  -\n", "[a: b, c d: [e], \"f\":g, {h, i: }]", "? - a\n  - b\n: c\n", "{a: b, c: , d}", "&a a: &b\n  &c d: *a\n",
		"a:\nb:\nc:\n- d:\n  e:\n- f:\n", "? a\n? b\n", "[{a: [b: {}]}, [],\n\n c\n d]\n", "[\n#\n?\n:\n]", "'a':\n \"b\": c", "[:,:,:]", "{?,?}", "[a:,b:]", "-\n-\n?\n", "{\"a\":\"b\"}",
		"[\"a\" :b,'c':d]", "[[a]:b,{c}:d]", "*a :b",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		top, faults := strict.Document(data)
		if top == nil || len(faults) > 0 {
			return
		}
		values := count(top)
		if most := values/4 - 1; most >= 0 && strict.TooMany(data, most) == nil {
			t.Errorf("%q has %d values, and at most %d indicators", data, values, most)
		}
	})
}

func count(v *yaml.Node) int {
	n := 1
	for _, c := range v.Content {
		n += count(c)
	}
	return n
}
