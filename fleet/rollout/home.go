package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// home refuses a rollout on its way back that has the states of devices elsewhere than the files. Without signatures, everyone
// with write access to the registry can write records, and what they name is opened with the publisher's credentials. A device that
// the files do not have any more is at least at a registry of theirs.
func (s Store) home(r *artifacts.Rollout) error {
	var first error
	more := 0
	for _, t := range goingBack(r) {
		err := s.homeOf(r, t)
		switch {
		case err == nil:
		case first == nil:
			first = err
		default:
			more++
		}
	}
	if first == nil {
		return nil
	}
	if more > 0 {
		first = fmt.Errorf("%w, and of %d more", first, more)
	}
	return fault.WithHint(first, "undo it with the files that it was begun with; where rollouts are not signed, another user of the registry may have written this")
}

func (s Store) homeOf(r *artifacts.Rollout, t artifacts.RolloutTarget) error {
	said := fmt.Sprintf("rollout %d of %s has the states of %s in %s", r.Number, r.Fleet, t.Device, t.Repository)
	hosts := []string{hostOf(s.Registry)}
	if s.files != nil {
		if d := s.files.Device(string(t.Device)); d != nil {
			at, _ := s.files.Repository(d) // Read has reported what is missing
			if at == t.Repository {
				return nil
			}
			return fmt.Errorf("%s, and the files have them in %s: %w", said, at, fault.ErrConflict)
		}
		hosts = append(hosts, hostOf(s.files.States))
	}
	if slices.Contains(hosts, hostOf(t.Repository)) {
		return nil
	}
	return fmt.Errorf("%s, the files do not have this device, and their registry is %s: %w", said, hosts[0], fault.ErrConflict)
}

func hostOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	return host
}
