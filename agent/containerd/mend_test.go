package containerd_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// damaged is an image on the device with files of every kind, and the layer that holds them.
func (r *rig) damaged(name string) (workload.Image, layer) {
	r.t.Helper()
	img, above := r.damagedImage(name)
	if err := r.Pull(r.t.Context(), img, nil); err != nil {
		r.t.Fatal(err)
	}
	return img, above
}

func (r *rig) damagedImage(name string) (workload.Image, layer) {
	r.t.Helper()
	below := tarred(r.t, entry{tar.Header{Name: "usr/lib/", Typeflag: tar.TypeDir, Mode: 0o755}, nil},
		entry{tar.Header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "/usr/lib"}, nil})
	above := tarred(r.t,
		entry{tar.Header{Name: "emptied", Mode: 0o4711, Uid: 7, Gid: 8}, noise(1, 70000)},
		entry{tar.Header{Name: "altered"}, noise(2, 5000)},
		entry{tar.Header{Name: "lib/library"}, noise(3, 5000)}, // hides the link below, as in Docker
		entry{tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "altered"}, nil},
		entry{tar.Header{Name: "twice"}, []byte("first")},
		entry{tar.Header{Name: "twice"}, []byte("second")},
		entry{tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "altered"}, nil},
		entry{tar.Header{Name: "sound"}, noise(4, 100)},
		entry{tar.Header{Name: "nothing"}, nil},
	)
	return r.craft(name, crafted{layers: []layer{r.program(), below, above}}), above
}

// damage is what a bad disk does; it returns how many files it spoils.
func (r *rig) damage() int {
	r.t.Helper()
	top := filepath.Dir(r.upper("emptied"))
	altered := noise(2, 5000)
	altered[2500] ^= 1
	err := errors.Join(
		os.Truncate(filepath.Join(top, "emptied"), 0),
		os.WriteFile(filepath.Join(top, "altered"), altered, 0o644), // hard with it
		os.Remove(filepath.Join(top, "lib/library")),
		os.Remove(filepath.Join(top, "link")),
	)
	if err != nil {
		r.t.Fatal(err)
	}
	return 5
}

func (r *rig) whole() error {
	top := filepath.Dir(r.upper("sound"))
	var errs []error
	for name, want := range map[string][]byte{
		"emptied": noise(1, 70000), "altered": noise(2, 5000), "hard": noise(2, 5000), "lib/library": noise(3, 5000), "link": noise(2, 5000),
		"twice": []byte("second"), "nothing": {},
	} {
		if got, err := os.ReadFile(filepath.Join(top, name)); err != nil || !slices.Equal(got, want) {
			errs = append(errs, fmt.Errorf("%s has %d bytes, %w, want its %d", name, len(got), err, len(want)))
		}
	}
	a, aerr := os.Stat(filepath.Join(top, "altered"))
	b, berr := os.Stat(filepath.Join(top, "hard"))
	if aerr != nil || berr != nil || !os.SameFile(a, b) {
		errs = append(errs, fmt.Errorf("hard is another file than altered: %w", errors.Join(aerr, berr)))
	}
	if st, err := os.Stat(filepath.Join(top, "emptied")); err != nil || st.Mode() != os.ModeSetuid|0o711 {
		errs = append(errs, fmt.Errorf("emptied has mode %v, %w", st.Mode(), err))
	}
	entries, err := os.ReadDir(top)
	if err != nil || len(entries) != 8 {
		errs = append(errs, fmt.Errorf("the layer holds %v, %w, want 8 entries", entries, err))
	}
	return errors.Join(errs...)
}

func TestMend(t *testing.T) {
	r := newRig(t)
	img, top := r.damaged("plant/mend")
	c := r.up(project("mend", server(img)))[0]
	r.serving(c.ID)
	before := r.seen(c.ID)
	if n, err := r.Mend(t.Context(), img); n != 0 || err != nil {
		t.Errorf("Mend of a whole image = %d, %v", n, err)
	}
	want := r.damage()
	r.reg.Down()
	if n, err := r.Mend(t.Context(), img); n != want || err != nil {
		t.Errorf("Mend = %d, %v, want %d", n, err, want)
	}
	if err := r.whole(); err != nil {
		t.Error(err)
	}
	if n, err := r.Mend(t.Context(), img); n != 0 || err != nil {
		t.Errorf("a second Mend = %d, %v, want nothing to do", n, err)
	}
	if now := r.seen(c.ID); now.PID != before.PID {
		t.Errorf("the container = %+v, was %+v", now, before)
	}
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.start(c)); err != nil {
		t.Error(err)
	}
	r.serving(c.ID)

	// The layer is damaged as well: only the registry can help, and is asked at the next use.
	r.damage()
	if err := os.Truncate(r.blob(digest.FromBytes(top.data)), 0); err != nil {
		t.Fatal(err)
	}
	again := r.reopened(r.o) // a process that has not seen the layer when it was good
	if _, err := again.Mend(t.Context(), img); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Mend without the layer = %v, want %v", err, fault.ErrNotFound)
	}
	if ok, _ := r.journal.IsDurable(img.Name()); ok {
		t.Error("the image is still durable")
	}
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	r.damagedImage("plant/mend") // the registry has it again
	if err := again.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := again.Mend(t.Context(), img); err != nil {
		t.Errorf("Mend after the pull = %d, %v", n, err)
	}
	if err := r.whole(); err != nil {
		t.Error(err)
	}
}

// TestDamageIsMendedAfterABoot: once, without anybody asking.
func TestDamageIsMendedAfterABoot(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the agent to look")
	}
	r := newRig(t)
	img, _ := r.damaged("plant/boot")
	r.created(project("boot", server(img)))
	r.damage()
	o := r.o
	o.RunDir = t.TempDir() // as after a boot
	r.reopened(o)
	testenv.Eventually(t, time.Minute, "the image is mended", r.whole)
}
