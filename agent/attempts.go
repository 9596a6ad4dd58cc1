package agent

import (
	"fmt"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
)

// DefaultMaxBoots is how often a device may boot while an update is not complete: an update that makes the device reboot would do so for ever.
const DefaultMaxBoots = 3

// countBoot counts a boot at which a change that has begun is not complete. At the last one its revisions are bad where there are good ones,
// which are restored. A restart of the agent alone is no boot.
func (l *loop) countBoot() error {
	if l.o.BootID == "" || l.target == nil || l.committed != nil && l.committed.Digest == l.target.Digest || l.targetDesired == nil {
		return nil
	}
	var updates []plan.Change
	begun := false
	for _, c := range l.facts(l.o.Now()).Open(l.targetDesired) {
		if r, known := l.gate.records[c.ID]; known && r.Begun.IsZero() {
			continue
		}
		begun = true
		if l.good[c.Deployment].Deployment != nil && l.targetDesired.Deployment(c.Deployment) != nil {
			updates = append(updates, c)
		}
	}
	a := store.Attempts{State: l.target.Digest, Boot: l.o.BootID, Boots: 1}
	if x := l.attempts; x != nil && x.State == a.State {
		a.Boots += x.Boots
		begun = begun && x.Boot != a.Boot
	}
	if !begun {
		return nil
	}
	var bad []store.Bad
	for _, c := range updates {
		d := l.targetDesired.Deployment(c.Deployment)
		bad = append(bad, store.Bad{
			Digest: d.Digest, DeploymentID: d.ID, Generation: l.target.Generation, Code: string(codes.BootLoop), Source: d.Components[0].Name, Revision: d.Components[0].Revision,
			Message: fmt.Sprintf("the device booted %d times before the update was complete", a.Boots), Since: l.o.Now(),
		})
	}
	if err := l.o.Store.Update(func(tx *store.Tx) error { return tx.SetAttempts(a) }); err != nil {
		return err
	}
	if l.attempts = &a; a.Boots < l.o.MaxBoots || len(bad) == 0 {
		return nil
	}
	return l.recordFailedUpdates(bad)
}
