package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The linker leaves out methods that nothing calls, unless a program may look up methods by names that are not constants. Of what our programs
// link only text/template does, also below html/template: with it they are a fifth to a third larger, and use more memory.
func TestProgramsLinkNoTemplates(t *testing.T) {
	dir := t.TempDir()
	if err := BuildOwn(t.Context(), dir, OwnPrograms()...); err != nil {
		t.Fatal(err)
	}
	for _, p := range OwnPrograms() {
		program, err := os.ReadFile(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(program, []byte("text/template.(*state).evalField")) {
			t.Errorf("%s links text/template; go build -ldflags=-dumpdep ./cmd/%[1]s 2>&1 | grep 'text/template' shows what calls it", p)
		}
	}
}
