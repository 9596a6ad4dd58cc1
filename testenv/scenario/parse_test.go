package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
