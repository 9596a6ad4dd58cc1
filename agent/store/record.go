package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// maxRecord bounds one record, in bytes: a status of 1000 components with messages is far below.
const maxRecord = 1 << 20

// State is one generation that passed every check, or that is being realised.
type State struct {
	Digest     digest.Digest `json:"digest"`    // of the state artifact's manifest
	Size       int64         `json:"size"`      // of the manifest
	MediaType  string        `json:"mediaType"` // of the manifest
	Generation uint64        `json:"generation"`
	Repository string        `json:"repository"` // where it was found, without scheme
	AcceptedAt time.Time     `json:"acceptedAt"`
	Created    time.Time     `json:"created,omitzero"`  // as its annotation says; zero: not known
	Expires    time.Time     `json:"expires,omitzero"`  // zero: never
	Windows    string        `json:"windows,omitempty"` // in which changes are made, as schedule.Windows.JSON; "": at any time
	Repeats    digest.Digest `json:"repeats,omitempty"` // of the earlier generation whose content it has again; "": none known
	SignedBy   []string      `json:"signedBy,omitempty"`
	Insecure   []string      `json:"insecure,omitempty"` // what was taken without a signature although one is the rule
	Signers    []Signer      `json:"signers,omitempty"`  // who signed what of it, as the policy was then
	Policy     string        `json:"policy,omitempty"`   // fingerprint of the trust policy by which the rest is; "": Signatures could not be kept
	// Signatures is the list of all signatures that counted, of its parts too, to verify it again; "": none was asked for.
	Signatures digest.Digest `json:"signatures,omitempty"`
}

// Continues reports whether the generations of a repository go on counting where s ended. They do, also in another repository, but
// for those of a manager: each counts by itself.
func (s *State) Continues(repository string) bool {
	return s.Repository == repository || !margo.IsManager(s.Repository) && !margo.IsManager(repository)
}

// Signer is a key that signed a part of a generation.
type Signer struct {
	What string        `json:"what"` // "state", "component registry.example/c", "image registry.example/i"
	Name string        `json:"name"` // of the key
	Key  digest.Digest `json:"key"`  // its fingerprint
}

// Refused is the newest state that was refused. At most one is kept: what the tag pointed at last.
type Refused struct {
	Digest     digest.Digest `json:"digest"`
	Generation uint64        `json:"generation"` // 0: not known, it failed before it could be read
	Code       string        `json:"code"`
	Message    string        `json:"message"`
	Hint       string        `json:"hint,omitempty"`
	Temporary  bool          `json:"temporary"` // asked again at the next check
	Since      time.Time     `json:"since"`
	Policy     string        `json:"policy"` // fingerprint of policy and configuration that it was held against
}

// Status is what was last reported about a deployment.
type Status struct {
	DeploymentID string        `json:"deploymentId"`
	Name         string        `json:"name"`
	Digest       digest.Digest `json:"digest"` // of the deployment's document that the report is about
	Generation   uint64        `json:"generation"`
	State        margo.State   `json:"state"`
	Since        time.Time     `json:"since"` // of State
	Components   []Component   `json:"components"`
	Child        string        `json:"child,omitempty"` // the device behind this one that it is for; "": this device
}

// Component is what was last reported about a component.
type Component struct {
	Name     string             `json:"name"`
	Revision string             `json:"revision"`
	Identity string             `json:"identity"` // of what runs: a hash of the project; "": nothing yet
	State    margo.State        `json:"state"`
	Since    time.Time          `json:"since"`
	Error    *margo.StatusError `json:"error,omitempty"`
}

// Report is one message to the fleet endpoint. Sequence orders the reports of a device and makes them idempotent.
type Report struct {
	Sequence uint64    `json:"sequence"`
	Kind     string    `json:"kind"`    // "status" or "capabilities"
	Subject  string    `json:"subject"` // deployment id or device id
	Body     []byte    `json:"body"`    // JSON, exactly as sent
	At       time.Time `json:"at"`
}

const (
	KindStatus       = "status"
	KindCapabilities = "capabilities"
)

// Gap says that reports were dropped undelivered because there was no room, or with Count 0 that the endpoint lacks what was delivered.
type Gap struct {
	First uint64    `json:"first"` // sequence of the first one dropped
	Last  uint64    `json:"last"`
	Count uint64    `json:"count"`
	Since time.Time `json:"since"` // when the first one was dropped
	Told  bool      `json:"told"`  // the newest of every subject was appended again since the last one was dropped
}

// Mark names a saved generation.
type Mark string

// The marks. Accepted only rises; Target is what the device realises; Committed ran completely; LastGood is what ran
// completely before Committed, kept on the device to fall back to.
const (
	Accepted  Mark = "accepted"
	Target    Mark = "target"
	Committed Mark = "committed"
	LastGood  Mark = "last-good"
)

var keyRefused = []byte("refused") // in the bucket "marks"

// decode reads a record strictly: what is not one JSON value of v's shape is damage.
func decode(what string, data []byte, v any) error {
	if len(data) > maxRecord {
		return fmt.Errorf("read record %s: %d bytes: %w", what, len(data), fault.ErrTooLarge)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read record %s: %w: %w", what, fault.ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("read record %s: trailing data: %w", what, fault.ErrInvalid)
	}
	return nil
}

// put writes a record. One that is there already costs the disk nothing.
func put(b *bbolt.Bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write record %q: %w", key, err)
	}
	if len(data) > maxRecord {
		return fmt.Errorf("write record %q: %d bytes: %w", key, len(data), fault.ErrTooLarge)
	}
	if bytes.Equal(b.Get(key), data) {
		return nil
	}
	if err := b.Put(key, data); err != nil {
		return fmt.Errorf("write record %q: %w", key, err)
	}
	return nil
}

// set writes a record; nil deletes it.
func set[T any](b *bbolt.Bucket, key []byte, v *T) error {
	if v == nil {
		return b.Delete(key)
	}
	return put(b, key, v)
}

// get reads a record; nil: there is none.
func get[T any](b *bbolt.Bucket, key []byte) (*T, error) {
	data := b.Get(key)
	if data == nil {
		return nil, nil
	}
	v := new(T)
	if err := decode(string(key), data, v); err != nil {
		return nil, err
	}
	return v, nil
}

// getMap reads a record that is a map; empty: there is none.
func getMap[K ~string, T any](b *bbolt.Bucket, key []byte) (map[K]T, error) {
	m, err := get[map[K]T](b, key)
	if m == nil || *m == nil {
		return map[K]T{}, err
	}
	return *m, nil
}
