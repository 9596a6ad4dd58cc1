package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// The document keeps what is between these lines for the bench, and everything else for people.
const (
	beginMarker = "<!-- bench: begin; `go run ./cmd/testenv bench --write FILE` writes what follows -->"
	endMarker   = "<!-- bench: end -->"
)

// insert replaces what is between the markers of a document.
func insert(document, figures []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(document, []byte(beginMarker+"\n"))
	if !ok {
		return nil, fmt.Errorf("no line %q", beginMarker)
	}
	_, after, ok := bytes.Cut(rest, []byte(endMarker))
	if !ok {
		return nil, fmt.Errorf("no line %q after the other", endMarker)
	}
	out := bytes.NewBuffer(bytes.Clone(before))
	fmt.Fprintf(out, "%s\n\n%s\n\n%s%s", beginMarker, bytes.TrimSpace(figures), endMarker, after)
	return out.Bytes(), nil
}

// write puts figures into a file, whole or not at all.
func write(file string, figures []byte) error {
	document, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if document, err = insert(document, figures); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	if err := os.WriteFile(next, document, 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}
