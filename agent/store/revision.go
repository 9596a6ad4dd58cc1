package store

import (
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// Good is the last revision of a deployment that ran completely: what an update that fails goes back to.
type Good struct {
	DeploymentID string        `json:"deploymentId"`
	Name         string        `json:"name"`
	Digest       digest.Digest `json:"digest"` // of the deployment's document
	Size         int64         `json:"size"`   // of the document
	Generation   uint64        `json:"generation"`
	State        digest.Digest `json:"state"`      // that it came with: its pins are under it
	Repository   string        `json:"repository"` // of State
	Since        time.Time     `json:"since"`
	Accepted     time.Time     `json:"accepted,omitzero"` // AcceptedAt of State: it may be accepted again later; zero: of an earlier version
	// Sizes of the components' manifests, as in [State].
	Sizes map[digest.Digest]int64 `json:"sizes,omitempty"`
}

// Bad is a revision of a deployment that was tried and did not run. It is not tried again while the device's state asks for
// the same digest.
type Bad struct {
	Digest       digest.Digest `json:"digest"` // of the deployment's document
	DeploymentID string        `json:"deploymentId"`
	Generation   uint64        `json:"generation"`
	Code         string        `json:"code"`
	Source       string        `json:"source"` // the component that failed
	Revision     string        `json:"revision"`
	Message      string        `json:"message"`
	Pause        bool          `json:"pause,omitempty"` // the update stays as it is: nothing was rolled back
	Since        time.Time     `json:"since"`
}

// AddBad remembers a revision that did not run. [Tx.RetainBad] bounds how many there are.
func (t *Tx) AddBad(bad Bad) error { return put(t.tx.Bucket(bucketBad), []byte(bad.Digest), bad) }

// Bad lists the revisions that did not run.
func (t *Tx) Bad() ([]Bad, error) { return list[Bad](t.tx.Bucket(bucketBad)) }

// RetainBad forgets all of them but these.
func (t *Tx) RetainBad(keep map[digest.Digest]bool) error {
	all, err := t.Bad()
	if err != nil {
		return err
	}
	for _, x := range all {
		if !keep[x.Digest] {
			if err := t.tx.Bucket(bucketBad).Delete([]byte(x.Digest)); err != nil {
				return fmt.Errorf("forget bad %s: %w", x.Digest, err)
			}
		}
	}
	return nil
}

// Good lists the last good revisions.
func (t *Tx) Good() ([]Good, error) { return list[Good](t.tx.Bucket(bucketGood)) }

// SetGood remembers the last good revision of a deployment.
func (t *Tx) SetGood(g Good) error {
	return put(t.tx.Bucket(bucketGood), []byte(g.DeploymentID), g)
}

// ReplaceGood remembers exactly these.
func (t *Tx) ReplaceGood(all []Good) error {
	if _, err := t.emptied(bucketGood); err != nil {
		return err
	}
	for _, g := range all {
		if err := t.SetGood(g); err != nil {
			return err
		}
	}
	return nil
}

// DeleteGood forgets a deployment that was removed.
func (t *Tx) DeleteGood(deployment string) error {
	return t.tx.Bucket(bucketGood).Delete([]byte(deployment))
}

// Again returns which run of which containers was stopped to be started again.
func (t *Tx) Again() (map[string]string, error) {
	out := map[string]string{}
	err := t.tx.Bucket(bucketAgain).ForEach(func(k, v []byte) error {
		out[string(k)] = string(v)
		return nil
	})
	return out, err
}

// SetAgain remembers exactly these.
func (t *Tx) SetAgain(runs map[string]string) error {
	b, err := t.emptied(bucketAgain)
	if err != nil {
		return err
	}
	for id, run := range runs {
		if err := b.Put([]byte(id), []byte(run)); err != nil {
			return fmt.Errorf("remember the restart of %s: %w", id, err)
		}
	}
	return nil
}

var keyAiling = []byte("ailing") // in the bucket "meta"

// Ailing returns the containers of last good revisions that fail, by id, with the generation since which they do.
func (t *Tx) Ailing() (map[string]uint64, error) {
	x, err := get[map[string]uint64](t.tx.Bucket(bucketMeta), keyAiling)
	if x == nil || err != nil {
		return map[string]uint64{}, err
	}
	return *x, nil
}

// SetAiling remembers exactly these.
func (t *Tx) SetAiling(since map[string]uint64) error {
	return put(t.tx.Bucket(bucketMeta), keyAiling, since)
}

// emptied returns a bucket without the records that it had.
func (t *Tx) emptied(name []byte) (*bbolt.Bucket, error) {
	err := t.tx.DeleteBucket(name)
	if err != nil {
		return nil, fmt.Errorf("empty bucket %s: %w", name, err)
	}
	b, err := t.tx.CreateBucket(name)
	if err != nil {
		return nil, fmt.Errorf("empty bucket %s: %w", name, err)
	}
	return b, nil
}
