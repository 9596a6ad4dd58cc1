package fleet

import (
	"time"

	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// WindowsChange are other windows in which a device makes changes.
type WindowsChange struct {
	Was     schedule.Windows `json:"was"`     // null: there were none, at any time
	Windows schedule.Windows `json:"windows"` // null: none, at any time
}

// changeOfWindows is the change to the windows of what a device had; nil: they stay.
func changeOfWindows(had *published, now schedule.Windows) *WindowsChange {
	c := &WindowsChange{Windows: now}
	if had != nil {
		c.Was = had.index.Windows
	}
	if c.Was.JSON() == now.JSON() {
		return nil
	}
	return c
}

// String describes the change for people.
func (c *WindowsChange) String() string {
	shown := func(w schedule.Windows) string {
		if w.Always() {
			return "none"
		}
		return w.String()
	}
	return "windows for changes: " + shown(c.Was) + " → " + shown(c.Windows)
}

// Overdue is why windows are not published: a device would never make another change; "": they open again, or now is not known.
func Overdue(w schedule.Windows, now time.Time) string {
	if w.Always() || now.IsZero() {
		return ""
	}
	if opens, _ := w.Next(now); !opens.IsZero() {
		return ""
	}
	return "the window for changes does not open any more: " + w.String()
}
