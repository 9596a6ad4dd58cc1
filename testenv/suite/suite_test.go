package suite

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A test that fails and a package that does not build end the run with an error, and are named in the end.
func TestRunNamesWhatFailed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/longshore-dev/longshore\n\ngo 1.26\n")
	write("good/good_test.go", "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n")
	write("testenv/demo/bad_test.go", "package demo\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Run(\"case\", func(t *testing.T) { t.Error(\"seven\") }) }\n")
	write("broken/broken_test.go", "package broken\n\nfunc TestBroken(\n")
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	var out bytes.Buffer
	err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true})
	for _, want := range []string{"failed: testenv/demo TestBad/case\n", "failed: broken", "bad_test.go:5: seven", "DONE 3 tests"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if err == nil || t.Failed() {
		t.Errorf("Run = %v\n%s", err, out.String())
	}
	out.Reset()
	if err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true, Packages: []string{"./good"}}); err != nil {
		t.Errorf("Run = %v\n%s", err, out.String())
	}
	if err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true, Packages: []string{"./none/..."}}); err == nil {
		t.Error("Run of no package = nil, want an error")
	}
}
