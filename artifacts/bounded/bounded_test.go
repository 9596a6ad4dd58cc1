package bounded_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestRead(t *testing.T) {
	for text, is := range map[string]error{"": nil, "1234": nil, "12345": fault.ErrTooLarge} {
		if data, err := bounded.Read(strings.NewReader(text), 4); !errors.Is(err, is) || err == nil && string(data) != text || err != nil && data != nil {
			t.Errorf("Read of %q = %q, %v, want %v", text, data, err, is)
		}
	}
	broken := errors.New("broken")
	if _, err := bounded.Read(iotest.ErrReader(broken), 4); !errors.Is(err, broken) {
		t.Errorf("Read = %v, want the reader's error", err)
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "five")
	if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	memory := fstest.MapFS{"five": {Data: []byte("12345")}}
	for limit, is := range map[int64]error{5: nil, 4: fault.ErrTooLarge} {
		data, err := bounded.File(os.Open, file, limit)
		same, errIn := bounded.FileIn(memory, "five", limit)
		if !errors.Is(err, is) || !errors.Is(errIn, is) || string(data) != string(same) || err == nil && string(data) != "12345" || err != nil && !strings.Contains(err.Error(), file) {
			t.Errorf("of at most %d bytes = %q, %v and %q, %v, want %v", limit, data, err, same, errIn, is)
		}
	}
	_, err := bounded.File(os.Open, filepath.Join(dir, "none"), 5)
	if _, errIn := bounded.FileIn(memory, "none", 5); !errors.Is(err, fs.ErrNotExist) || !errors.Is(errIn, fs.ErrNotExist) {
		t.Errorf("of what is not there = %v, %v, want fs.ErrNotExist", err, errIn)
	}
	if _, err := bounded.File(os.Open, dir, 5); err == nil {
		t.Error("a folder was read")
	}
}
