package files_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

const press = "spiffe://plant.acme.example/margo/wfm/main/client/press-07"

func TestReload(t *testing.T) {
	ours, next := identitytest.New(t), identitytest.New(t)
	dir := t.TempDir()
	f := files.Files{Bundle: filepath.Join(dir, "bundle.pem")}
	var log bytes.Buffer
	write := func(a *identitytest.Authority, id string) {
		f.Cert, f.Key = a.Issue(t, id, nil).Write(t, dir, "press")
	}
	write(ours, press)
	identitytest.Write(t, f.Bundle, ours.PEM())
	source := files.New(f, time.Now, slog.New(slog.NewTextHandler(&log, nil)))
	get := func() (id string, serial string) {
		t.Helper()
		c, err := source.Credentials()
		if err != nil {
			t.Fatal(err)
		}
		return c.SVID.Name.String(), c.Bundle.Anchors()[0].SerialNumber.String()
	}
	id, first := get()
	if id != press {
		t.Fatalf("Credentials = %s", id)
	}
	told := func(what string, times int) {
		t.Helper()
		for range 3 {
			if now, anchor := get(); now != id || anchor != first {
				t.Errorf("with %s: %s", what, now)
			}
		}
		if n := strings.Count(log.String(), what); n != times {
			t.Errorf("%q is told %d times:\n%s", what, n, &log)
		}
		log.Reset()
	}
	told("certificate read", 1)
	told("certificate read", 0)
	write(next, press) // of an authority that the bundle lacks
	told("leads to no authority", 1)
	identitytest.Write(t, f.Bundle, []byte("{"))
	told("unexpected end of JSON", 1)
	identitytest.Write(t, f.Bundle, nil)
	told("no certificate in PEM", 1)
	if err := os.Remove(f.Key); err != nil {
		t.Fatal(err)
	}
	told("no such file", 1)
	write(next, press+"-next")
	identitytest.Write(t, f.Bundle, append(ours.PEM(), next.PEM()...))
	if id, _ = get(); id != press+"-next" {
		t.Errorf("after all files were replaced: %s", id)
	}
	told("certificate read", 1)
	identitytest.Write(t, f.Bundle, next.PEM())
	if _, anchor := get(); anchor == first {
		t.Error("an anchor that the new bundle lacks stayed")
	}
}

func TestFirstRead(t *testing.T) {
	a, stranger := identitytest.New(t), identitytest.New(t)
	for name, tt := range map[string]struct {
		damage func(files.Files) error
		want   string
		is     error
	}{
		"no key":             {func(f files.Files) error { return os.Remove(f.Key) }, "private key", fs.ErrNotExist},
		"no bundle":          {func(f files.Files) error { return os.Remove(f.Bundle) }, "bundle.pem", fs.ErrNotExist},
		"a key for all":      {func(f files.Files) error { return os.Chmod(f.Key, 0o644) }, "everybody may read it", fault.ErrConfig},
		"another's bundle":   {func(f files.Files) error { return os.WriteFile(f.Bundle, stranger.PEM(), 0o600) }, "own certificate: ", fault.ErrUnauthenticated},
		"a very long bundle": {func(f files.Files) error { return os.WriteFile(f.Bundle, make([]byte, 2<<20), 0o600) }, "bundle.pem", fault.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := files.Files{Bundle: filepath.Join(dir, "bundle.pem")}
			f.Cert, f.Key = a.Issue(t, press, nil).Write(t, dir, "press")
			identitytest.Write(t, f.Bundle, a.PEM())
			if err := tt.damage(f); err != nil {
				t.Fatal(err)
			}
			_, err := files.New(f, time.Now, slog.New(slog.DiscardHandler)).Credentials()
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, tt.is) {
				t.Errorf("Credentials: %v, want %q", err, tt.want)
			}
		})
	}
}
