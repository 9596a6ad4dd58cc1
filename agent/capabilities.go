package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// machineEvery is the pause between two looks at the machine, and with it the shortest time between two reports of what changed there:
// several changes within it make one report, and a device that was plugged in and out within it makes none.
const machineEvery = time.Minute

// machineLook is what the loop knows of its looks at the machine.
type machineLook struct {
	busy   bool
	at     time.Time // of the next one
	failed bool      // the last result was no capabilities
}

// lookAtMachine finds out, beside the loop, whether hardware was plugged in or out. The first look was before the agent was made.
func (l *loop) lookAtMachine(now time.Time) {
	if l.o.Machine == nil || l.machine.busy || now.Before(l.machine.at) {
		return
	}
	first := l.machine.at.IsZero()
	l.machine.at = now.Add(cmp.Or(l.o.LookEvery, machineEvery))
	if first {
		return
	}
	l.machine.busy = true
	l.background(func() {
		c := l.o.Machine()
		l.send(func(l *loop) {
			l.machine.busy = false
			l.machineSeen(l.o.Now(), c)
		})
	})
}

// machineSeen reports capabilities that are others than before, and has states checked against them from now on.
func (l *loop) machineSeen(now time.Time, c margo.DeviceCapabilities) {
	after, err := c.Encode()
	if err != nil {
		if !l.machine.failed {
			l.log.Warn("what the machine has now is not understood; its capabilities stay as they were", "err", err)
		}
		l.machine.failed = true
		return
	}
	l.machine.failed = false
	if before, err := l.device.Encode(); err == nil && bytes.Equal(before, after) {
		return
	}
	old := l.device
	l.device = c
	if err := l.o.Store.Update(func(tx *store.Tx) error { return l.capabilities(tx, now) }); err != nil {
		l.device = old // the next look tries again
		l.log.Warn("cannot save that the device's capabilities have changed", "err", err)
		return
	}
	l.intake.SetCapabilities(c, after)
	what := changed(old, c)
	l.log.Info("the device's capabilities have changed", "what", what)
	l.events.Emit(status.Event{Kind: status.EventCapabilities, Message: what})
	l.nudge()
}

// changed lists what was added and what was removed, for the event and the log.
func changed(old, now margo.DeviceCapabilities) string {
	a, b := items(old), items(now)
	var out []string
	for _, s := range b {
		if n := slices.Index(a, s); n >= 0 {
			a = slices.Delete(a, n, n+1)
		} else {
			out = append(out, "new: "+s)
		}
	}
	for _, s := range a {
		out = append(out, "gone: "+s)
	}
	return strings.Join(out, "; ")
}

func items(c margo.DeviceCapabilities) []string {
	p := c.Properties
	out := []string{"vendor " + p.Vendor, "model " + p.ModelNumber, "serial number " + p.SerialNumber, "memory " + p.Memory, "storage " + p.Storage}
	for _, x := range p.CPUs {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%v cores %s", x.Cores, x.Architecture)))
	}
	for _, x := range p.Interfaces {
		out = append(out, "interface "+x.Type)
	}
	for _, x := range p.Peripherals {
		out = append(out, strings.Join(strings.Fields(strings.Join([]string{x.Type, x.Manufacturer, x.Model}, " ")), " "))
	}
	for key, v := range c.Labels {
		out = append(out, fmt.Sprintf("label %s %v", key, v))
	}
	slices.Sort(out)
	return out
}
