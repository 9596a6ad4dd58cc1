package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// The page for the machine's panel, of a real agent in a real browser, on an island: neither the browser nor the page asks for anything elsewhere,
// and everything is decided by touch and by keyboard on both screens, in two languages, while the registry is away.
func TestPanel(t *testing.T) {
	island := testenv.NewIsland(t, "127.0.0.1", "10.208.0.0/16")
	registry := testenv.Registry(t, testenv.Distribution, testenv.WithTLS(), testenv.WithAddress(island.Address+":0"))
	dir := t.TempDir()
	var out bytes.Buffer
	tours := 0
	german, err := filepath.Abs("../../agent/panel/testdata/de.yaml")
	if err != nil {
		t.Fatal(err)
	}
	err = panelTour(t.Context(), &out, dir, world.Options{Network: island.Network, Registry: registry}, german, func(elsewhere []string) {
		if tours++; len(elsewhere) > 0 {
			t.Errorf("the browser asked for %v", elsewhere)
		}
	})
	if err != nil || tours != 4 {
		t.Fatalf("%d tours: %v\n%s", tours, err, &out)
	}
	if n := island.Strays(t); n != 0 {
		t.Errorf("%d packets wanted to leave the machine", n)
	}
	for _, name := range []string{"panel-360.png", "panel-1280.png"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 10<<10 || info.Size() > 200<<10 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
