package soak

import (
	"os"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
}

// TestChaos is the short form of: just soak chaos.
func TestChaos(t *testing.T) {
	needRoot(t)
	figures, err := Chaos(t.Context(), ChaosOptions{Out: t.Output(), Containers: 10, Duration: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if figures.Kills["container"] == 0 {
		t.Errorf("killed %v", figures.Kills)
	}
}

// TestLoad is the short form of: just soak load.
func TestLoad(t *testing.T) {
	needRoot(t)
	figures, err := Load(t.Context(), LoadOptions{Out: t.Output(), Updates: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if f.Updates != 2 || f.Requests < 100 {
			t.Errorf("%+v", f)
		}
	}
}

func TestChaosRefuses(t *testing.T) {
	for _, o := range []ChaosOptions{{Rate: -1}, {Rate: 1e6}, {Rate: 1e-9}, {Containers: -1}} {
		o.Out = t.Output()
		if _, err := Chaos(t.Context(), o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
