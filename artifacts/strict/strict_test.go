package strict_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

type read func(file string, data []byte) (*strict.Node, error)

func TestRefusedDocuments(t *testing.T) {
	deep := strict.MaxDepth + 1
	tests := []struct {
		name string
		read read
		in   string
		want string
	}{
		{"yaml missing", strict.YAML, "", "f: is empty"},
		{"yaml blank", strict.YAML, " \n\n", "f: is empty"},
		{"yaml comment only", strict.YAML, "# nothing\n", "f: is empty"},
		{"yaml marker only", strict.YAML, "---\n", "f: is empty"},
		{"yaml not utf-8", strict.YAML, "a: b\nc: \xff\n", "f:2:4: is not UTF-8 text"},
		{"yaml byte order mark", strict.YAML, "\ufeffa: b\n", "f:1:1: begins with a byte order mark"},
		{"yaml too large", strict.YAML, "a: " + strings.Repeat("x", strict.MaxYAML), "f: has 1048579 bytes, more than the 1048576 that are allowed"},
		{"yaml truncated flow", strict.YAML, "a: [1, 2", `f:1:4: "[" without its "]"`},
		{"yaml truncated mapping", strict.YAML, "a: {\nb: 1", `f:1:4: "{" without its "}"`},
		{"yaml truncated after a bracket", strict.YAML, "a: b\nc: [\n", `f:2:4: "[" without its "]"`},
		{"yaml truncated after a comma", strict.YAML, "a: [b,\n\n", `f:1:6: "[" or "{" without its end`},
		{"yaml two commas", strict.YAML, "a: [b,,]\n", "f:1:7: a value is missing"},
		{"yaml comma", strict.YAML, "a: [1\nb: 2", `f:2:2: "," or "]" is missing`},
		{"yaml colon", strict.YAML, "a: b: c", `f:1:5: ": " where none may stand`},
		{"yaml wrong column", strict.YAML, "a:\n  b: 1\n c: 2", "f:3:2: belongs to nothing that stands above it"},
		{"yaml two values", strict.YAML, "a:\n  b: 1\n  {}\n", `f:3:3: a value without a key, or a key without its ":"`},
		{"yaml truncated quote", strict.YAML, "a: \"b", "f:1:4: a quoted text without its end"},
		{"yaml tab", strict.YAML, "a: b\n\tc: d\n", "f:2:1: a tab, where only spaces may stand"},
		{"yaml duplicates, all told", strict.YAML, "a: 1\nb: 2\na: 3\nc:\n  d: 1\n  d: 2\n", "f:3:1: a: duplicate key, first at line 1\nf:6:3: c.d: duplicate key, first at line 5"},
		{"yaml two documents", strict.YAML, "a: 1\n---\nb: 2\n", "f:2:1: a second document begins; only one is allowed"},
		{"yaml document after end", strict.YAML, "a: 1\n...\nb: 2\n", "f:3:1: a second document begins; only one is allowed"},
		{"yaml anchors", strict.YAML, "a: &x [1]\nb: *x\nc:\n  <<: *x\n", "f:1:4: anchors are not allowed\nf:2:4: aliases are not allowed\nf:4:3: merge keys are not allowed\nf:4:7: aliases are not allowed"},
		{"yaml tag", strict.YAML, "a: !!str 1\n", "f:1:4: tags are not allowed"},
		{"yaml non-specific tag", strict.YAML, "a: [b, ! 12]\n", "f:1:8: tags are not allowed"},
		{"yaml verbatim non-specific tag", strict.YAML, "a:\n  !<!> 12\n", "f:2:3: tags are not allowed"},
		{"yaml escaped non-specific tag", strict.YAML, "a: !<%21> 12\n", "f:1:4: tags are not allowed"},
		{"yaml tags of every form", strict.YAML, "a: !b 1\nc: !!int 2\nd: !<tag:yaml.org,2002:str> 3\n!!str e: 4\nf: !g [!h {}]\n", `f:1:4: tags are not allowed
f:2:4: tags are not allowed
f:3:4: tags are not allowed
f:4:1: tags are not allowed
f:5:4: tags are not allowed
f:5:8: tags are not allowed`},
		{"yaml unknown alias", strict.YAML, "a: 1\nb:\n  - *x\n", "f:3:5: unknown anchor 'x' referenced"},
		{"yaml directive", strict.YAML, "%YAML 1.2\n---\na: b\n", "f:1:1: directives are not allowed"},
		{"yaml directive of a tag", strict.YAML, "# c\n%TAG ! tag:x,2026:\n---\na: b\n", "f:2:1: directives are not allowed"},
		{"yaml directive after a document", strict.YAML, "a: b\n...\n%YAML 1.1\n---\nc: d\n", "f:3:1: directives are not allowed"},
		{"yaml byte order mark before a key", strict.YAML, "a: 1\n\ufeffb: 2\n", "f:2:1: a byte order mark inside the text"},
		{"yaml byte order mark in a comment", strict.YAML, "a: 1 # \ufeff\n", "f:1:8: a byte order mark inside the text"},
		{"yaml byte order mark in quotes", strict.YAML, "ä: \"x\ufeff\"\n", "f:1:6: a byte order mark inside the text"},
		{"yaml next line", strict.YAML, "a: b # c\u0085d: e\n", "f:1:9: U+0085 ends a line for some readers of YAML and not for others"},
		{"yaml line separator", strict.YAML, "a: \"b\u2028c\"\n", "f:1:6: U+2028 ends a line for some readers of YAML and not for others"},
		{"yaml paragraph separator", strict.YAML, "a: |\n  b\n  c\u2029d: e\n", "f:3:4: U+2029 ends a line for some readers of YAML and not for others"},
		{"yaml carriage return", strict.YAML, "a: b\rc: d\n", "f:1:5: a carriage return without a line feed"},
		{"yaml carriage return at the end", strict.YAML, "a: b\r", "f:1:5: a carriage return without a line feed"},
		{"yaml deep flow", strict.YAML, strings.Repeat("[", 200_000), "f:1:65: nested deeper than 64"},
		{"yaml deep compact lists", strict.YAML, strings.Repeat("- ", 100_000), "f:1:129: nested deeper than 64"},
		{"yaml deep block", strict.YAML, block(deep), "f:65:66: nested deeper than 64"},
		{"yaml many values", strict.YAML, "[" + strings.Repeat("1,", 120_000) + "1]", "f:1:200000: more than 100000 values"},
		{"yaml deep value", strict.YAML, strings.Repeat("- ", strict.MaxDepth) + "x", "f:1:129: " + strings.Repeat("[0]", strict.MaxDepth) + ": nested deeper than 64"},
		{"yaml deep keys", strict.YAML, strings.Repeat("[", 9_999) + strings.Repeat("]: 1", 9_999), "f:1:65: nested deeper than 64"},
		{"yaml long key", strict.YAML, "a: 1\n? b\n: [c, [d]: e, \"{\": f, [g, h]: i]\n", "f:3:7: b[1]: keys must be strings\nf:3:23: b[3]: keys must be strings"},
		{"yaml deep lists and comments", strict.YAML, strings.Repeat("- ", 9_999) + "1\n" + strings.Repeat(" #\n#\n", 100_000), "f:1:129: nested deeper than 64"},
		{"yaml many commas", strict.YAML, "[" + strings.Repeat(",", 1_000_000), "f:1:200001: more than 200000 places where a value can begin"},
		{"yaml many directives", strict.YAML, "a: 1\n...\n" + strings.Repeat("%TAG !a! b\n", 10_000), "f:3:1: directives are not allowed"},
		{"yaml key types", strict.YAML, "1: a\ntrue: b\n08: c\n", "f:1:1: keys must be strings\nf:2:1: keys must be strings\nf:3:1: keys must be strings"},
		{"yaml glued colon", strict.YAML, "a: {b:c, \"d\":1, e:{f: 2}, g:}\n", `f:1:19: "," or "}" is missing`},
		{"yaml colon without a space", strict.YAML, "a: {b:c, \"d\":1}\n", "f:1:5: a space must follow \":\""},
		{"yaml key that is no text", strict.YAML, "? [a]\n: b\n", "f:1:3: keys must be strings"},
		{"yaml ambiguous numbers", strict.YAML, "a: 017\nb: 0x1f\nc: 1_000\nd: .inf\ne: +1\nf: 08\n", `f:1:4: a: "017" is not the same number to every reader of YAML
f:2:4: b: "0x1f" is not the same number to every reader of YAML
f:3:4: c: "1_000" is not the same number to every reader of YAML
f:4:4: d: is not a number that can be held
f:5:4: e: "+1" is not the same number to every reader of YAML
f:6:4: f: "08" is not the same number to every reader of YAML`},
		{"json missing", strict.JSON, "", "f: is empty"},
		{"json not utf-8", strict.JSON, "{\n\"a\":\"\xc3\x28\"}", "f:2:6: is not UTF-8 text"},
		{"json byte order mark", strict.JSON, "\ufeff{}", "f:1:1: begins with a byte order mark"},
		{"json too large", strict.JSON, strings.Repeat(" ", strict.MaxJSON+1), "f: has 4194305 bytes, more than the 4194304 that are allowed"},
		{"json truncated object", strict.JSON, "{\"a\": 1,\n", `f:2:1: the document ends too early`},
		{"json truncated string", strict.JSON, `{"a": "b`, "f:1:9: the document ends too early"},
		{"json truncated word", strict.JSON, `[tru`, `f:1:5: the document ends too early`},
		{"json trailing", strict.JSON, "{}\n{}", "f:2:1: more data after the document"},
		{"json trailing comma", strict.JSON, `{"a":1,}`, `f:1:8: '}' is not allowed here, a key in double quotes must follow`},
		{"json list comma", strict.JSON, `[1,]`, `f:1:4: ']' is not allowed here, a value must follow`},
		{"json comment", strict.JSON, "// x\n{}", `f:1:1: '/' is not allowed here, a value must follow`},
		{"json single quotes", strict.JSON, `{'a':1}`, `f:1:2: '\'' is not allowed here, a key in double quotes must follow`},
		{"json duplicates, all told", strict.JSON, "{\"a\":1,\n\"a\":2, \"\\u0061\":3}", "f:2:1: a: duplicate key, first at line 1\nf:2:8: a: duplicate key, first at line 1"},
		{"json leading zero", strict.JSON, `[01]`, `f:1:3: '1' is not allowed here, "," or "]" must follow`},
		{"json plus", strict.JSON, `[+1]`, `f:1:2: '+' is not allowed here, a value must follow`},
		{"json NaN", strict.JSON, `[NaN]`, `f:1:2: 'N' is not allowed here, a value must follow`},
		{"json half surrogate", strict.JSON, `["\ud800x"]`, "f:1:9: half of a surrogate pair"},
		{"json control character", strict.JSON, "[\"a\nb\"]", "f:1:4: control characters in strings must be escaped"},
		{"json bad escape", strict.JSON, `["\x"]`, `f:1:4: 'x' is not allowed here, an escape must follow`},
		{"json deep", strict.JSON, strings.Repeat("[", 1_000_000), "f:1:10001: nested deeper than 64"},
		{"json many values", strict.JSON, "[" + strings.Repeat("[],", 120_000) + "1]", "f:1:299999: more than 100000 values"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := tt.read("f", []byte(tt.in))
			if err == nil {
				t.Fatalf("read = %v, want an error", n.Value())
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			var e *strict.Error
			if !errors.Is(err, fault.ErrInvalid) || !errors.As(err, &e) || e.File != "f" {
				t.Errorf("%v is no strict.Error for f that is fault.ErrInvalid", err)
			}
		})
	}
}

func block(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String() + strings.Repeat(" ", depth) + "x"
}

func TestValues(t *testing.T) {
	want := map[string]any{
		"text": "ä\n😀/", "int": int64(-7), "big": uint64(math.MaxUint64), "huge": 18446744073709551616.0, "float": 2.5,
		"exp": 1000.0, "yes": true, "no": false, "nothing": nil, "list": []any{int64(1), "2", []any{}},
		"object": map[string]any{"a": map[string]any{}},
	}
	for name, in := range map[string]struct {
		read read
		text string
	}{
		"json": {strict.JSON, `{"text":"ä\n\ud83d\ude00\/","int":-7,"big":18446744073709551615,"huge":18446744073709551616,
			"float":2.50,"exp":1e3,"yes":true,"no":false,"nothing":null,"list":[1,"2",[]],"object":{"a":{}}}`},
		"yaml block": {strict.YAML, "---\ntext: \"ä\\n😀/\"\nint: -7 # c\nbig: 18446744073709551615\nhuge: 18446744073709551616\nfloat: 2.50\nexp: 1e3\n" +
			"yes: true\nno: False\nnothing:\nlist:\n- 1\n- '2'\n- []\nobject:\n  a: {}\n...\n"},
		"yaml windows": {strict.YAML, "text: \"ä\\n😀/\"\r\nint: -7\r\nbig: 18446744073709551615\r\nhuge: 18446744073709551616\r\nfloat: 2.50\r\nexp: 1e3\r\n" +
			"yes: true\r\nno: false\r\nnothing: ~\r\nlist: [1, \"2\", []]\r\nobject: {a: {}}"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := in.read("f", []byte(in.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, n.Value()); diff != "" {
				t.Errorf("Value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScalars(t *testing.T) {
	n, err := strict.YAML("f", []byte("a: |\n  x\n  y\nb: >-\n  q\n  r\nc: 'it''s'\nd: yes\ne: 2026-11-20\nf: 1.2.3\ng: 12:30\nh: a b\n"+
		"i: \"\\u0085\\N\\L\\P\\r\\ufeff\"\nj: \"\\uFEFF\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": "x\ny\n", "b": "q r", "c": "it's", "d": "yes", "e": "2026-11-20", "f": "1.2.3", "g": "12:30", "h": "a b", "i": "\u0085\u0085\u2028\u2029\r\ufeff", "j": "\ufeff"}
	if diff := cmp.Diff(want, n.Value()); diff != "" {
		t.Errorf("Value (-want +got):\n%s", diff)
	}
}

func TestReaderFaultsAreToldTogether(t *testing.T) {
	const in = `name: 1.0
pol:
  interval: soon
poll:
  interval: 90s
  retries: -1
mode: fastt
id: Ä B
list: [a, 2]
on: "yes"
empty: ""
nothing:
huge: 18446744073709551616
`
	n, err := strict.YAML("agent.yaml", []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	n.Need("name").Text()
	n.Need("device").Text()
	poll := n.Get("poll")
	if got := poll.Get("interval").Duration(); got != 90*time.Second {
		t.Errorf("Duration = %v, want 90s", got)
	}
	poll.Get("retries").Uint64()
	poll.Close()
	n.Get("mode").OneOf("fast", "slow")
	n.Get("id").Matching(strict.Expression(`^[a-z]+$`), "a name of lower-case letters")
	n.Get("list").Strings()
	n.Get("on").Bool()
	n.Get("empty").Filled()
	n.Get("huge").Uint64()
	if got := n.Get("nothing"); got != nil {
		t.Errorf("Get of an empty member = %v, want nil", got)
	}
	n.Close()
	want := `agent.yaml:1:1: device is missing
agent.yaml:1:7: name: must be a string, is a number
agent.yaml:2:1: pol: unknown key, did you mean "poll"?
agent.yaml:6:12: poll.retries: "-1" is no whole number from 0 to 18446744073709551615
agent.yaml:7:7: mode: "fastt" is none of fast, slow, did you mean "fast"?
agent.yaml:8:5: id: "Ä B" is not a name of lower-case letters
agent.yaml:9:11: list[1]: must be a string, is a number
agent.yaml:10:5: on: must be a boolean, is a string
agent.yaml:11:8: empty: must not be empty
agent.yaml:13:7: huge: "18446744073709551616" is no whole number from 0 to 18446744073709551615`
	if diff := cmp.Diff(want, n.Err().Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if got := fault.Hint(n.Err()); got != "put the value in quotes" {
		t.Errorf("Hint = %q, want the first fault's", got)
	}
}

func TestWrongKinds(t *testing.T) {
	n, err := strict.JSON("f", []byte(`{"s":"x","n":1,"l":[],"o":{},"z":null}`))
	if err != nil {
		t.Fatal(err)
	}
	n.Get("s").Uint64()
	n.Get("s").Items()
	n.Get("n").Get("x")
	n.Get("n").Text()
	n.Get("l").Members()
	n.Get("o").Float64()
	n.Get("z").Text()
	n.Get("absent").Need("x").Text()
	n.Get("n").Int64()
	want := `f:1:6: s: must be a number, is a string
f:1:14: n: must be an object, is a number
f:1:20: l: must be an object, is a list
f:1:27: o: must be a number, is an object
f:1:34: z: must be a string, is null`
	if diff := cmp.Diff(want, n.Err().Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	n, err := strict.YAML("f", []byte("["+strings.Repeat("a,", 1000)+"a]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range n.Items() {
		i.Bool()
	}
	var e *strict.Error
	if !errors.As(n.Err(), &e) || len(e.Faults) != 51 || e.Faults[50].Message != "and 951 more faults" {
		t.Errorf("faults = %v, want 50 and a count", n.Err())
	}
}

// A fault that is only counted costs no path, which may be as long as the document.
func TestFaultsCostNoMoreThanTheyTell(t *testing.T) {
	const long, many = 100_000, 20_000
	members := strings.Repeat(`"a":1,`, many) + `"a":1}}`
	for name, read := range map[string]read{"yaml": strict.YAML, "json": strict.JSON} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read("f", []byte(`{"`+strings.Repeat("k", long)+`": {`+strings.ReplaceAll(members, ":", ": ")))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("and %d more faults", many-50)) {
			t.Errorf("%s: error of %d duplicates = %.80v…", name, many, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 300<<20 {
			t.Errorf("%s: %d duplicates take %d MB", name, many, used>>20)
		}
	}
}

func FuzzYAML(f *testing.F) {
	for _, s := range []string{
		"a: 1\nb: [x, {y: z}]\n", "a: &x 1\nb: *x\n", "- |\n  x\n- >-\n  y\n", "{\"a\": \"\\u00e4\"}", "a: b\r\n\r\nc: 'd\n  e'\n", "? a\n: b\n", "a: !!str 1", "---\na: b\n...\n", "\xff", "[[[", "a:\n- b\n-\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { walk(t, strict.YAML, data) })
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,true,null,"\ud83d\ude00"]}`, `{"a":1,"a":2}`, `[`, `"\u12"`, `18446744073709551615`, "{\"a\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { walk(t, strict.JSON, data) })
}

func walk(t *testing.T, read read, data []byte) {
	n, err := read("f", data)
	if err != nil {
		var e *strict.Error
		if !errors.As(err, &e) || len(e.Faults) == 0 || n != nil {
			t.Fatalf("read = %v, %v: want an error with faults or a node", n, err)
		}
		return
	}
	n.Value()
	n.Text()
	n.Get("a").Uint64()
	n.Close()
	if err := n.Err(); err != nil && !strings.HasPrefix(err.Error(), "f:") {
		t.Fatalf("error %q has no position", err)
	}
}
