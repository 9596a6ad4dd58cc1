package soak

import (
	"os"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
)

// TestPowerCut is the short form of: just soak power-cut.
func TestPowerCut(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	figures, err := PowerCut(t.Context(), PowerCutOptions{Out: t.Output(), Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if figures.Compared == 0 {
		t.Error("nothing was compared")
	}
}
