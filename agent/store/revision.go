package store

import (
	"time"

	"github.com/opencontainers/go-digest"
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
	return t.retain(bucketBad, func(d []byte) bool { return keep[digest.Digest(d)] })
}

// Good lists the last good revisions.
func (t *Tx) Good() ([]Good, error) { return list[Good](t.tx.Bucket(bucketGood)) }

// SetGood remembers the last good revision of a deployment.
func (t *Tx) SetGood(g Good) error {
	return put(t.tx.Bucket(bucketGood), []byte(g.DeploymentID), g)
}

// ReplaceGood remembers exactly these, by deployment id.
func (t *Tx) ReplaceGood(all map[string]Good) error { return exactly(t, bucketGood, all) }

func (t *Tx) DeleteGood(deployment string) error {
	return t.tx.Bucket(bucketGood).Delete([]byte(deployment))
}

// Keys in the bucket "meta".
var (
	keyAgain  = []byte("again")
	keyAiling = []byte("ailing")
)

// Again returns which run of which containers was stopped to be started again, by the container's id.
func (t *Tx) Again() (map[string]string, error) {
	return getMap[string, string](t.tx.Bucket(bucketMeta), keyAgain)
}

// SetAgain remembers exactly these.
func (t *Tx) SetAgain(runs map[string]string) error {
	return put(t.tx.Bucket(bucketMeta), keyAgain, runs)
}

// Ailing returns the containers of last good revisions that fail, by id, with the generation since which they do.
func (t *Tx) Ailing() (map[string]uint64, error) {
	return getMap[string, uint64](t.tx.Bucket(bucketMeta), keyAiling)
}

// SetAiling remembers exactly these.
func (t *Tx) SetAiling(since map[string]uint64) error {
	return put(t.tx.Bucket(bucketMeta), keyAiling, since)
}
