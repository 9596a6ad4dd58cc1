package agent

import (
	"fmt"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
)

// maxBoots is how often a device may boot while an update is not complete: an update that makes the device reboot would do so for ever.
const maxBoots = 3

// countBoot counts a boot at which an update that has begun is not complete. At the last one its revisions are bad, and the last good ones are
// restored. A restart of the agent alone is no boot.
func (l *loop) countBoot() error {
	if l.o.BootID == "" || l.target == nil || l.committed != nil && l.committed.Digest == l.target.Digest || l.targetDesired == nil {
		return nil
	}
	var begun []plan.Change
	for _, c := range l.openChanges(l.targetDesired) {
		if r, known := l.gate.records[c.ID]; l.good[c.Deployment].Deployment != nil && l.targetDesired.Deployment(c.Deployment) != nil && (!known || !r.Begun.IsZero()) {
			begun = append(begun, c)
		}
	}
	if len(begun) == 0 {
		return nil
	}
	var bad []store.Bad
	err := l.o.Store.Update(func(tx *store.Tx) error {
		a, err := tx.Attempts()
		if err != nil {
			return err
		}
		switch {
		case a == nil || a.State != l.target.Digest:
			a = &store.Attempts{State: l.target.Digest, Boot: l.o.BootID, Boots: 1}
		case a.Boot == l.o.BootID:
			return nil
		default:
			a.Boot, a.Boots = l.o.BootID, a.Boots+1
		}
		if a.Boots < maxBoots {
			return tx.SetAttempts(a)
		}
		for _, c := range begun {
			d := l.targetDesired.Deployment(c.Deployment)
			bad = append(bad, store.Bad{
				Digest: d.Digest, DeploymentID: d.ID, Generation: l.target.Generation, Code: string(codes.BootLoop), Source: d.Components[0].Name, Revision: d.Components[0].Revision,
				Message: fmt.Sprintf("the device booted %d times before the update was complete", a.Boots), Since: l.o.Now(),
			})
		}
		return tx.SetAttempts(nil)
	})
	if err != nil || len(bad) == 0 {
		return err
	}
	return l.rollBack(bad)
}
