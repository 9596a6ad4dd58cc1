package scenario

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// What a scenario can need.
const (
	needContainers = "containers" // nothing of it can be shown in memory
	needMemory     = "memory"     // the other way round
	needOwnDaemon  = "daemon"     // implied by steps that touch containerd
	needPermission = "permission" // the owner of the device allows privileged containers
)

// maxFile bounds a scenario's file: a reader has to understand it.
const maxFile = 16 << 10

// section begins a file of a revision, or the steps.
var section = regexp.MustCompile(`^-- (\S+) --$`)

// revisionName is what a revision may be called.
var revisionName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// Parse reads a scenario. The error has all faults, each with its position.
func Parse(file string, data []byte) (*Scenario, error) {
	p := &parser{s: &Scenario{File: file, Revisions: map[string]fstest.MapFS{}}}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: longer than %d bytes", file, maxFile)
	}
	p.sections(string(data))
	p.check()
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.s, nil
}

type parser struct {
	s    *Scenario
	errs []error
	apps []string // revisions that are deployed
}

func (p *parser) fault(line, column int, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d:%d: %s", p.s.File, line, column, fmt.Sprintf(format, args...)))
}

// sections takes the file apart.
func (p *parser) sections(text string) {
	var prose, body strings.Builder
	name, begun, steps := "", 0, false
	end := func() {
		if name != "" && name != "steps" {
			p.file(begun, name, body.String())
		}
		body.Reset()
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if m := section.FindStringSubmatch(line); m != nil {
			end()
			if steps {
				p.fault(n, 1, "the steps come last")
			}
			name, begun, steps = m[1], n, m[1] == "steps"
			continue
		}
		switch {
		case strings.HasPrefix(line, "--"):
			p.fault(n, 1, "a section begins with %q", "-- NAME --")
		case name == "":
			prose.WriteString(line + "\n")
		case steps:
			p.step(n, line)
		default:
			body.WriteString(line + "\n")
		}
	}
	end()
	p.s.Title, _, _ = strings.Cut(strings.TrimSpace(prose.String()), "\n\n")
	p.s.Title = strings.Join(strings.Fields(p.s.Title), " ")
	if !steps {
		p.fault(max(n, 1), 1, "there are no steps: the last section must be %q", "-- steps --")
	}
}

// file adds a file to its revision: "v1" is the Compose file of v1, "v1/web.env" another file beside it.
func (p *parser) file(line int, name, text string) {
	revision, rest, ok := strings.Cut(name, "/")
	if !ok {
		rest = "compose.yaml"
	}
	if !revisionName.MatchString(revision) || rest == "" || path.Clean(rest) != rest || strings.HasPrefix(rest, "..") {
		p.fault(line, 4, "%q names no revision or file of one: \"v1\" is the Compose file of v1, \"v1/web.env\" a file beside it", name)
		return
	}
	fs, ok := p.s.Revisions[revision]
	if !ok {
		fs = fstest.MapFS{}
		p.s.Revisions[revision] = fs
		p.s.Order = append(p.s.Order, revision)
	}
	if _, ok := fs[rest]; ok {
		p.fault(line, 4, "%s is there twice", name)
	}
	fs[rest] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

// step reads one line of the steps.
func (p *parser) step(line int, text string) {
	words, err := split(text)
	if err != nil {
		p.fault(line, err.column, "%s", err.message)
		return
	}
	if len(words) == 0 {
		return
	}
	a := &arguments{p: p, line: line, words: words[1:], end: len(text) + 1}
	v, ok := verbs()[words[0].text]
	if !ok {
		p.fault(line, words[0].column, "unknown verb %q", words[0].text)
		return
	}
	act := v.parse(a)
	if len(a.words) > 0 && !a.failed {
		p.fault(line, a.words[0].column, "%q is too much: %s %s", a.words[0].text, words[0].text, v.usage)
	}
	if act != nil {
		p.s.Steps = append(p.s.Steps, Step{Line: line, Text: strings.TrimSpace(text), act: act})
	}
}

// check looks at the file as a whole.
func (p *parser) check() {
	if p.s.Title == "" {
		p.fault(1, 1, "the file begins with what it shows, in words")
	}
	for name, fs := range p.s.Revisions {
		if fs["compose.yaml"] == nil {
			p.fault(1, 1, "revision %s has no Compose file: a section %q", name, "-- "+name+" --")
		}
	}
	used := map[string]bool{}
	for _, a := range p.apps {
		used[a] = true
	}
	for _, name := range p.s.Order {
		if !used[name] {
			p.fault(1, 1, "revision %s is not deployed by any step", name)
		}
	}
	if len(p.s.Steps) == 0 && len(p.errs) == 0 {
		p.fault(1, 1, "no step does anything")
	}
}

// need notes what the scenario needs, once.
func (p *parser) need(what, why string) {
	n := Need{what, why}
	if !slices.Contains(p.s.Needs, n) {
		p.s.Needs = append(p.s.Needs, n)
	}
}

// word is one word of a line; column counts from 1.
type word struct {
	text   string
	column int
}

type lexError struct {
	column  int
	message string
}

// split takes a line apart: words, "quoted words" with \n, \t, \" and \\, and a comment from a lonely # on.
func split(line string) ([]word, *lexError) {
	var out []word
	for i := 0; i < len(line); {
		switch c := line[i]; c {
		case ' ', '\t':
			i++
		case '#':
			return out, nil
		case '"':
			w := word{column: i + 1}
			var b strings.Builder
			i++
			for closed := false; !closed; i++ {
				switch {
				case i >= len(line):
					return nil, &lexError{w.column, "the quoted word does not end"}
				case line[i] == '"':
					closed = true
				case line[i] == '\\':
					i++
					if i >= len(line) || !strings.ContainsRune(`nt"\`, rune(line[i])) {
						return nil, &lexError{i, `after \ comes n, t, " or \`}
					}
					b.WriteByte(map[byte]byte{'n': '\n', 't': '\t', '"': '"', '\\': '\\'}[line[i]])
				default:
					b.WriteByte(line[i])
				}
			}
			if i < len(line) && line[i] != ' ' {
				return nil, &lexError{i + 1, "a space is missing after a quoted word"}
			}
			w.text = b.String()
			out = append(out, w)
		default:
			j := i
			for j < len(line) && line[j] != ' ' && line[j] != '\t' {
				if line[j] == '"' {
					return nil, &lexError{j + 1, "a quote inside a word: quote all of it"}
				}
				j++
			}
			out = append(out, word{line[i:j], i + 1})
			i = j
		}
	}
	return out, nil
}

// arguments are the words after a verb, taken one by one. Only the first fault is reported.
type arguments struct {
	p      *parser
	line   int
	words  []word
	end    int // column after the line
	failed bool
}

func (a *arguments) fault(column int, format string, args ...any) {
	if !a.failed {
		a.p.fault(a.line, column, format, args...)
	}
	a.failed = true
}

// next takes a word that must be there.
func (a *arguments) next(what string) string {
	if len(a.words) == 0 {
		a.fault(a.end, "%s is missing", what)
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w.text
}

// maybe takes a word if it is the given one.
func (a *arguments) maybe(w string) bool {
	if len(a.words) == 0 || a.words[0].text != w {
		return false
	}
	a.words = a.words[1:]
	return true
}

// peek is the next word, "" at the end.
func (a *arguments) peek() string {
	if len(a.words) == 0 {
		return ""
	}
	return a.words[0].text
}

// column is where the next word is.
func (a *arguments) column() int {
	if len(a.words) == 0 {
		return a.end
	}
	return a.words[0].column
}

// rest takes all words that are left.
func (a *arguments) rest() []string {
	var out []string
	for _, w := range a.words {
		out = append(out, w.text)
	}
	a.words = nil
	return out
}

// number takes a number.
func (a *arguments) number(what string) int {
	column := a.column()
	w := a.next(what)
	n := 0
	if _, err := fmt.Sscanf(w, "%d", &n); err != nil || fmt.Sprint(n) != w {
		a.fault(column, "%q is no number", w)
	}
	return n
}

// maybeText takes what may follow "contains" or stand alone at the end.
func (a *arguments) maybeText() string {
	if !a.maybe("contains") {
		return ""
	}
	return a.next("a text")
}

const good = `What it shows.

More words.
-- v1 --
services:
  web:
    image: plant.example/toolbox:1
-- v1/web.env --
A=1
-- steps --
deploy v1 as other with A=1 B="" # a comment
wait failed image-missing in other contains "a b"
`

func TestParse(t *testing.T) {
	s, err := Parse("x.txt", []byte(strings.Replace(good, `B=""`, "B=2", 1)))
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, step := range s.Steps {
		steps = append(steps, step.Text)
	}
	want := []string{`deploy v1 as other with A=1 B=2 # a comment`, `wait failed image-missing in other contains "a b"`}
	if diff := cmp.Diff(want, steps); diff != "" || s.Title != "What it shows." || string(s.Revisions["v1"]["web.env"].Data) != "A=1\n" {
		t.Errorf("steps (-want +got):\n%s; %q", diff, s.Title)
	}
}

func TestParseFaults(t *testing.T) {
	base := "Words.\n-- v1 --\nservices: {web: {}}\n-- steps --\n"
	for name, c := range map[string]struct{ text, want string }{
		"no words":          {"-- v1 --\nservices: {}\n-- steps --\ndeploy v1\n", "x:1:1: the file begins with"},
		"no steps":          {"Words.\n-- v1 --\nservices: {}\n", "x:3:1: there are no steps"},
		"unknown verb":      {base + "deploy v1\nsmash web\n", `x:6:1: unknown verb "smash"`},
		"unknown revision":  {base + "deploy v2\n", `x:5:8: there is no revision "v2"`},
		"not deployed":      {base + "offline\n", "x:1:1: revision v1 is not deployed"},
		"too much":          {base + "deploy v1 now\n", `x:5:11: "now" is too much`},
		"missing":           {base + "deploy v1\nkill\n", "x:6:5: a service is missing"},
		"unknown service":   {base + "deploy v1\nkill db\n", `x:6:6: no revision has a service "db"`},
		"unknown property":  {base + "deploy v1\nexpect web shiny\n", `x:6:12: "shiny" is no property`},
		"not a number":      {base + "deploy v1\nexpect web exited one\n", `x:6:19: "one" is no number`},
		"open quote":        {base + "deploy v1\nexpect web log contains \"a\n", "x:6:25: the quoted word does not end"},
		"quote in word":     {base + "deploy v1\nexpect web log contains a\"b\n", "x:6:26: a quote inside a word"},
		"bad section":       {"Words.\n-- v1\n-- steps --\n", "x:2:1: a section begins with"},
		"path out of it":    {"Words.\n-- v1/../x --\n-- steps --\n", `x:2:4: "v1/../x" names no revision`},
		"steps not last":    {base + "deploy v1\n-- v2 --\nservices: {}\n", "x:6:1: the steps come last"},
		"no Compose file":   {"Words.\n-- v1/a.env --\nA=1\n-- steps --\ndeploy v1\n", "revision v1 has no Compose file"},
		"twice":             {"Words.\n-- v1 --\n-- v1 --\n-- steps --\ndeploy v1\n", "x:3:4: v1 is there twice"},
		"port":              {base + "deploy v1\nexpect device http 8080\n", `x:6:20: "8080" is not like :8080`},
		"unknown namespace": {base + "deploy v1\nexpect web shares time device\n", `"time" is no kind of namespace`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse = %v, want %s", err, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("Words.\n-- v1 --\nservices: {web: {}}\n-- steps --\ndeploy v1\nexpect web limit memory 64M\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := Parse("x", []byte(text)); err == nil && len(s.Steps) == 0 && len(s.Revisions) > 0 {
			t.Error("revisions and no steps")
		}
	})
}
