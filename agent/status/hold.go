package status

import (
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
)

// Hold keeps the device at an earlier generation because a person at the device chose it.
type Hold = artifacts.CurrentHold

// NewHold shows a saved hold; nil: none.
func NewHold(h *store.Hold) *Hold {
	if h == nil {
		return nil
	}
	return &Hold{Generation: h.Generation, By: h.By, Via: h.Via, Reason: h.Reason, At: h.At}
}
