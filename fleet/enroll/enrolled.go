package enroll

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

const (
	checkEvery   = time.Second // between checks for new decisions
	checkTimeout = 5 * time.Second
	withdrawal   = time.Minute // of all credentials that are due
	retryEvery   = time.Minute // of withdrawals that failed
)

// snapshot has the keys that are or were enrolled.
type snapshot struct {
	changes int64
	keys    map[string]digest.Digest // of a device
	removed map[digest.Digest]bool
}

// Look reports whether a client is an enrolled device that presents its own key. known false: it is not in the enrollment's records. An
// error that wraps fault.ErrDenied: it was removed, or another key has its id. It does not query the database: a removal takes effect a second later.
func (s *Service) Look(client string, leaf *x509.Certificate) (known bool, err error) {
	key := digest.FromBytes(leaf.RawSubjectPublicKeyInfo)
	s.mu.Lock()
	enrolled, ok := s.enrolled.keys[client]
	removed := s.enrolled.removed[key]
	s.mu.Unlock()
	switch {
	case removed:
		return true, fmt.Errorf("%s was removed from this manager: %w", client, fault.ErrDenied)
	case ok && enrolled != key:
		return true, fmt.Errorf("%s is enrolled with another key: %w", client, fault.ErrDenied)
	}
	return ok, nil
}

// Start reads the enrolled keys. Before it, [Service.Look] finds none.
func (s *Service) Start(ctx context.Context) error { return s.refresh(ctx) }

// Run applies decisions of operators, and withdraws credentials of removed devices, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	var withdrawn int64 // changes whose withdrawals are complete
	var again time.Time
	failing := false // logged at the first of several failures
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := s.refresh(ctx)
		if err != nil && !failing {
			s.o.Logger.Error("decisions about devices cannot be read: those known count on", "error", err, "hint", fault.Hint(err))
		}
		failing = err != nil
		s.mu.Lock()
		changes := s.enrolled.changes
		s.mu.Unlock()
		if now := s.o.Now(); err == nil && (changes != withdrawn || !again.IsZero() && now.After(again)) {
			withdrawn, again = changes, time.Time{}
			if !s.withdraw(ctx) {
				again = now.Add(retryEvery)
			}
		}
	}
}

// refresh reads decisions if there are new ones.
func (s *Service) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	changes, err := s.o.Store.EnrollmentChanges(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	current := s.enrolled.changes == changes
	s.mu.Unlock()
	if current {
		return nil
	}
	next := snapshot{changes: changes, keys: map[string]digest.Digest{}, removed: map[digest.Digest]bool{}}
	for _, state := range []store.EnrollmentState{store.EnrollmentApproved, store.EnrollmentRemoved} {
		all, err := s.o.Store.ListEnrollments(ctx, store.EnrollmentQuery{State: state})
		if err != nil {
			return err
		}
		for _, e := range all {
			if state == store.EnrollmentApproved {
				next.keys[e.Device] = digest.Digest(e.Key)
			} else {
				next.removed[digest.Digest(e.Key)] = true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if next.changes > s.enrolled.changes { // otherwise another goroutine has read later ones
		s.enrolled = next
	}
	return nil
}

// withdraw deletes the credentials of removed devices; false: some are left.
func (s *Service) withdraw(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, withdrawal)
	defer cancel()
	due, err := s.o.Store.ListEnrollments(ctx, store.EnrollmentQuery{Withdraw: true})
	if err != nil || len(due) == 0 {
		return err == nil
	}
	policy, err := s.o.Policy()
	complete := true
	for _, e := range due {
		done := err
		switch {
		case err != nil:
		case policy.Pull == nil:
			done = Shared{}.Withdraw(ctx, e.Credential)
		default:
			done = policy.Pull.Withdraw(ctx, e.Credential)
		}
		if done == nil {
			done = s.o.Store.NoteWithdrawal(ctx, e.Key)
		}
		switch {
		case done == nil:
			s.o.Logger.Info("pull credential withdrawn", "device", e.Device, "credential", e.Credential)
		case !errors.Is(done, context.Canceled):
			s.o.Logger.Warn("a pull credential of a removed device is not withdrawn yet", "device", e.Device, "credential", e.Credential, "error", done, "hint", fault.Hint(done))
			complete = false
			if errors.Is(done, fault.ErrTemporary) { // nor the others: each would wait for the registry
				err = done
			}
		}
	}
	return complete
}
