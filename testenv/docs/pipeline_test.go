package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/testenv"
)

var yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)```")

// steps are the shell commands of a pipeline, in order: what stands under run, and what is listed under script.
func steps(v *yaml.Node) (out []string) {
	for i, one := range v.Content {
		key := ""
		if v.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue
			}
			key = v.Content[i-1].Value
		}
		switch key {
		case "run":
			out = append(out, one.Value)
		case "script":
			for _, line := range one.Content {
				out = append(out, line.Value)
			}
		default:
			out = append(out, steps(one)...)
		}
	}
	return out
}

// What the pipelines of docs/ci.md run is run, in a checkout as the page leaves it; how they install longshore is not.
func TestPipelines(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "ci.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse("ci.md", string(text))
	if err != nil {
		t.Fatal(err)
	}
	w := sit(t, programs(t))
	w.registry()
	w.images()
	w.git()
	if out, err := w.shell(p.Script(w.stands)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	blocks := yamlBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d pipelines, want one of GitHub Actions and one of GitLab CI", len(blocks))
	}
	key, err := os.ReadFile(filepath.Join(w.box.Dir(), "plants", "release.key"))
	if err != nil {
		t.Fatal(err)
	}
	for i, env := range []map[string]string{
		{"RUNNER_TEMP": w.box.Dir(), "GITHUB_STEP_SUMMARY": filepath.Join(w.box.Dir(), "summary.md"), "RELEASE_KEY": string(key)},
		{"RELEASE_KEY": filepath.Join(w.box.Dir(), "plants", "release.key")},
	} {
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(blocks[i][1]), &document); err != nil {
			t.Fatal(err)
		}
		all := slices.DeleteFunc(steps(&document), func(s string) bool { return strings.HasPrefix(s, "go install ") })
		maps.Copy(w.env, env)
		// Something is to be published in each of them.
		script := fmt.Sprintf("cd plants && sed -i 's/POLL_SECONDS: [0-9]*/POLL_SECONDS: %d/' fleet/fleet.yaml && git commit --quiet -am again && set -e\n%s\n", 20+i, strings.Join(all, "\n")) +
			"longshore fleet plan -q fleet && longshore verify -q --key release.pub " + w.server.Host + "/plant/state:press-07"
		out, err := w.shell(script)
		if err != nil || len(all) != 3 || !strings.Contains(out, "2 states published, signed") {
			t.Errorf("pipeline %d, %q: %v\n%s", i+1, all, err, out)
		}
	}
	if data, err := os.ReadFile(filepath.Join(w.box.Dir(), "summary.md")); err != nil || !strings.Contains(string(data), "POLL_SECONDS") {
		t.Errorf("summary of the job: %q, %v", data, err)
	}
}
