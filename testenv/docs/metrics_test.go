package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/metrics"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

// empty is a device without anything: every metric is named all the same.
type empty struct{}

func (empty) Status() status.Status          { return status.Status{} }
func (empty) Containers() []status.Container { return nil }
func (empty) Counts() status.Counts          { return status.Counts{} }
func (empty) Stats(context.Context, []string) ([]status.Usage, error) {
	return nil, nil
}

// TestMetricsPageHasEveryMetric holds docs/metrics.md to what is served; UPDATE_GOLDEN=1 writes its table.
func TestMetricsPageHasEveryMetric(t *testing.T) {
	const begin, end = "<!-- metrics -->\n", "<!-- end of metrics -->\n"
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs", "metrics.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	var page bytes.Buffer
	if err := metrics.Write(t.Context(), &page, empty{}); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | kind | means |\n|---|---|---|\n")
	help := map[string]string{}
	for line := range strings.Lines(page.String()) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case len(f) == 4 && f[1] == "HELP":
			help[f[2]] = f[3]
		case len(f) == 4 && f[1] == "TYPE":
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f[2], f[3], help[f[2]])
		}
	}
	want := before + begin + b.String() + end + after
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what the agent serves; run with UPDATE_GOLDEN=1", file)
	}
}
