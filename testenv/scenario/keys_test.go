package scenario

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// keyTable is the table of every Compose key, made from compose-go's schema: "key | forms | what a device does | how".
const keyTable = "../../agent/compose/testdata/keys.golden"

// keysOf reads the table: what a device does with each key.
func keysOf(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(keyTable)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(line, " | "); len(f) == 4 && !strings.HasPrefix(line, "#") {
			out[f[0]] = f[2]
		}
	}
	if len(out) < 300 {
		t.Fatalf("%d keys in %s", len(out), keyTable)
	}
	return out
}

// use notes the keys of a value at a place of the table.
func use(used map[string]bool, table map[string]string, at string, v any) {
	known := func(p string) bool { _, ok := table[p]; return ok }
	used[at] = true
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			switch p := at + "." + k; {
			case at == "":
				use(used, table, k, x)
			case known(p):
				use(used, table, p, x)
			case known(at + ".*"):
				use(used, table, at+".*", x)
			}
		}
	case []any:
		for _, x := range v {
			m, ok := x.(map[string]any)
			if !ok {
				if known(at + ".*") {
					used[at+".*"] = true // "A=1" in a list is A: 1 in a mapping
				}
				continue
			}
			for k, y := range m {
				use(used, table, at+".[]."+k, y)
			}
		}
	}
}

// TestEveryKey wants each key that devices handle, or keep as metadata, in a scenario. What a pre_start container
// shares with services is shown with services.
func TestEveryKey(t *testing.T) {
	table := keysOf(t)
	used := map[string]bool{}
	for name, s := range load(t) {
		for _, fs := range s.Revisions {
			var doc map[string]any
			if err := yaml.Unmarshal(fs["compose.yaml"].Data, &doc); err != nil {
				if !strings.HasPrefix(name, "refuse/") {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			use(used, table, "", doc)
		}
	}
	const preStart = "services.*.pre_start.[]."
	missing := 0
	for _, key := range sorted(table) {
		if table[key] != "handled" && table[key] != "metadata" || strings.HasPrefix(key, "jobs") {
			continue
		}
		if rest, ok := strings.CutPrefix(key, preStart); ok {
			if _, shared := table["services.*."+rest]; shared {
				continue
			}
		}
		if !used[key] {
			missing++
			t.Logf("in no scenario: %s (%s)", key, table[key])
		}
	}
	if missing > 0 {
		t.Errorf("%d keys are in no scenario", missing)
	}
}
