package status

import (
	"time"

	"github.com/longshore-dev/longshore/agent/store"
)

// Hold keeps the device at an earlier generation because somebody at the device chose it.
type Hold struct {
	Generation uint64    `json:"generation"`
	By         string    `json:"by"`
	Via        string    `json:"via"`
	Reason     string    `json:"reason,omitempty"`
	At         time.Time `json:"at"`
}

// NewHold shows a saved hold; nil: none.
func NewHold(h *store.Hold) *Hold {
	if h == nil {
		return nil
	}
	return &Hold{h.Generation, h.By, h.Via, h.Reason, h.At}
}
