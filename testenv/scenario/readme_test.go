package scenario

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadme holds README.md to the verbs, conditions and properties that there are.
func TestReadme(t *testing.T) {
	const begin, end = "<!-- verbs -->\n", "<!-- end of verbs -->\n"
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no markers")
	}
	want := head + begin + tables() + end + tail
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile("README.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("README.md (-want +got), UPDATE_GOLDEN=1 writes it:\n%s", diff)
	}
}

func tables() string {
	var b strings.Builder
	line := func(what, usage, doc string) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.TrimSpace(what+" "+strings.ReplaceAll(usage, "|", "\\|")), strings.ReplaceAll(doc, "|", "\\|"))
	}
	head := func(what string) { fmt.Fprintf(&b, "\n| %s | |\n|---|---|\n", what) }
	head("verb")
	for _, name := range sorted(verbs()) {
		line(name, verbs()[name].usage, verbs()[name].doc)
	}
	head("condition")
	for _, name := range sorted(outcomes()) {
		line(name, outcomes()[name].usage, outcomes()[name].doc)
	}
	line("device http", ":PORT[/PATH] [contains TEXT]", "a server on the device answers with 2xx")
	line("SERVICE PROPERTY", "", "one of these:")
	head("property")
	for _, name := range sorted(properties()) {
		line(name, properties()[name].usage, properties()[name].doc)
	}
	b.WriteString("\n")
	return b.String()
}
