package attack

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
)

// TestThreatModel holds docs/threat-model.md against what is played here: each attack is in a table or in the text, and each
// test that it names is there.
func TestThreatModel(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "docs", "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	played := map[string]bool{}
	for _, a := range slices.Concat(attacks(), mirrorAttacks(), insiders(), successions(), usurpers(), freezes(), impostors()) {
		if played[a.name] {
			t.Errorf("two attacks are called %q", a.name)
		}
		played[a.name] = true
	}
	for name := range onEach {
		if !played[name] {
			t.Errorf("onEach names %q, which is no attack", name)
		}
	}
	for _, w := range powers() {
		played[w.name] = true
	}
	for _, name := range subtests(t) {
		played[name] = true
	}
	for _, name := range tests(t) {
		played[name] = true
	}
	named := map[string]bool{}
	for _, name := range shown(string(data)) {
		if folder, test, ok := strings.Cut(name, ".Test"); ok {
			named[name] = true
			if !exists(t, root, folder, "Test"+test) {
				t.Errorf("the page names %s, and there is no such test", name)
			}
			continue
		}
		named[name] = true
		if !played[name] {
			t.Errorf("the page names the attack %q, which nobody plays", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(played)) {
		if !named[name] {
			t.Errorf("the page does not name the attack %q", name)
		}
	}
}

// quoted is what stands in backticks, over the end of a line too.
var quoted = regexp.MustCompile("`([^`]+)`")

// shown lists the tests that the page names: all that is quoted in the column of a table that says what shows it, and in the
// part about false metadata.
func shown(page string) []string {
	var names []string
	column := -1
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			column = -1
			continue
		}
		if i := slices.IndexFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "shown by" }); i >= 0 {
			column = i
		}
		if column > 0 && column < len(cells) {
			for _, m := range quoted.FindAllStringSubmatch(cells[column], -1) {
				names = append(names, m[1])
			}
		}
	}
	_, hints, _ := strings.Cut(page, "\n## False metadata")
	hints, _, _ = strings.Cut(hints, "\n## ")
	for _, m := range quoted.FindAllStringSubmatch(hints, -1) {
		names = append(names, strings.Join(strings.Fields(m[1]), " "))
	}
	return names
}

// subtests are the names of attacks that stand in no list.
func subtests(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, file := range []string{"attack_test.go", "credentials_test.go"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:t\.Run\(|\{)"([^"]{4,})", (?:func|onFirstMirror)`).FindAllStringSubmatch(string(data), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// tests are those of this package that play one attack each.
func tests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(string(data), -1) {
			if m[1] != "TestAttacks" && m[1] != "TestThreatModel" {
				names = append(names, "attack."+m[1])
			}
		}
	}
	return names
}

// exists reports whether a folder of that name, anywhere, has a test.
func exists(t *testing.T, root, folder, test string) bool {
	t.Helper()
	for _, depth := range []string{"", "*/", "*/*/", "*/*/*/"} {
		files, err := filepath.Glob(filepath.Join(root, depth+folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "\nfunc "+test+"(") {
				return true
			}
		}
	}
	return false
}
