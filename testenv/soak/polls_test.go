package soak

import (
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// TestPolls is the short form of: go run ./cmd/testenv soak polls.
func TestPolls(t *testing.T) {
	for name, reconnect := range map[string]bool{"kept connections": false, "new connections": true} {
		t.Run(name, func(t *testing.T) {
			devices := testenv.Rounds(40, 1000)
			f, err := Polls(t.Context(), PollsOptions{Out: t.Output(), Devices: devices, Every: 2 * time.Second, Duration: 6 * time.Second, Reconnect: reconnect})
			if err != nil {
				t.Fatal(err)
			}
			t.Log(f)
			if f.Failed > 0 || f.Polls < 2*devices {
				t.Errorf("%d of %d polls failed: %s", f.Failed, f.Polls, f.FirstFailure)
			}
			if most := int(f.Over.Seconds()+2) * devices; f.Registry > most { // one request a device and interval, of a second
				t.Errorf("the registry got %d requests, at most %d are one a device and interval", f.Registry, most)
			}
		})
	}
}
