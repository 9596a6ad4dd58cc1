package strict_test

import (
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// A duration may begin with days, in documents as in flags.
func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "3d": 72 * time.Hour, "1d12h": 36 * time.Hour, "0": 0, "-5m": -5 * time.Minute,
		"": -1, "d": -1, "1.5d": -1, "-3d": -1, "3d-1h": -1, "3days": -1, "1d0": -1, "1d+2h": -1, "1d.5h": -1, "1d0s": 24 * time.Hour, "70000d": -1, "65535d1000000h": -1,
	} {
		if got, err := strict.ParseDuration(text); (err == nil) != (want != -1) || err == nil && got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	root, err := strict.YAML("agent.yaml", []byte("full: 7d\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := strict.Result(root, root.Get("full").Duration()); d != 7*24*time.Hour || err != nil {
		t.Errorf("Duration = %v, %v, want 7 days", d, err)
	}
}
