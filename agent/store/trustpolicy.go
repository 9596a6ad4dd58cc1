package store

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Keys in the bucket "trust".
var (
	keyTrust       = []byte("current") // Trust, without the two documents
	keyTrustPolicy = []byte("policy")
	keyTrustRoot   = []byte("root")
	keyTrustHeld   = []byte("held")
)

// Trust is the newest version of the trust policy that came from the registry.
type Trust struct {
	Version    uint64        `json:"version"`
	Digest     digest.Digest `json:"digest"`     // of the artifact's manifest
	Repository string        `json:"repository"` // where it was found, without scheme
	// Anchor names the policy file that it descends from: by its signers. Under another file it means nothing.
	Anchor     string        `json:"anchor"`
	File       digest.Digest `json:"file"` // of the policy file as it was then
	AcceptedAt time.Time     `json:"acceptedAt"`
	SignedBy   []string      `json:"signedBy,omitempty"`
	PolicyHash digest.Digest `json:"policyHash"` // of Policy
	RootHash   digest.Digest `json:"rootHash"`   // of Root; "": there is none

	Policy []byte `json:"-"` // the document
	Root   []byte `json:"-"` // sigstore trusted root; nil: there is none
}

// Trust returns the policy that came from the registry; nil when none did.
func (t *Tx) Trust() (*Trust, error) {
	b := t.tx.Bucket(bucketTrust)
	x, err := get[Trust](b, keyTrust)
	if x == nil || err != nil {
		return nil, err
	}
	x.Policy, x.Root = bytes.Clone(b.Get(keyTrustPolicy)), bytes.Clone(b.Get(keyTrustRoot))
	if digest.FromBytes(x.Policy) != x.PolicyHash || rootHash(x.Root) != x.RootHash {
		return nil, fmt.Errorf("read record trust policy %d: %w", x.Version, fault.ErrDigestMismatch)
	}
	return x, nil
}

// SetTrust takes over a version of the policy. Under one anchor the version never falls, and an equal one keeps its digest:
// [fault.ErrRollback].
func (t *Tx) SetTrust(x Trust) error {
	b := t.tx.Bucket(bucketTrust)
	old, err := get[Trust](b, keyTrust)
	if err != nil {
		return err
	}
	if old != nil && old.Anchor == x.Anchor && (x.Version < old.Version || x.Version == old.Version && x.Digest != old.Digest) {
		return fmt.Errorf("accept trust policy %d (%s) over %d (%s): %w", x.Version, x.Digest, old.Version, old.Digest, fault.ErrRollback)
	}
	x.PolicyHash, x.RootHash = digest.FromBytes(x.Policy), rootHash(x.Root)
	if err := put(b, keyTrust, x); err != nil {
		return err
	}
	return errors.Join(document(b, keyTrustPolicy, x.Policy), document(b, keyTrustRoot, x.Root))
}

// HeldTrust are the revocations of versions of the trust policy that wait for an approval. They count.
type HeldTrust struct {
	Anchor  string       `json:"anchor"`  // as in Trust
	Version uint64       `json:"version"` // the newest of the versions
	Revoked []Revocation `json:"revoked"`
}

// Revocation takes back a key, by its fingerprint, or content, by its digest.
type Revocation struct {
	Key    digest.Digest `json:"key,omitempty"` // "": Digest is revoked
	Digest digest.Digest `json:"digest,omitempty"`
	Since  time.Time     `json:"since,omitzero"` // zero: not known
	Reason string        `json:"reason,omitempty"`
}

// HeldTrust returns the revocations of versions that wait; nil: there are none.
func (t *Tx) HeldTrust() (*HeldTrust, error) {
	return get[HeldTrust](t.tx.Bucket(bucketTrust), keyTrustHeld)
}

// SetHeldTrust remembers them, in place of those that were remembered.
func (t *Tx) SetHeldTrust(h HeldTrust) error {
	return put(t.tx.Bucket(bucketTrust), keyTrustHeld, h)
}

func document(b *bbolt.Bucket, key, data []byte) error {
	if len(data) > maxRecord {
		return fmt.Errorf("write record trust %s: %d bytes: %w", key, len(data), fault.ErrTooLarge)
	}
	if data == nil {
		return b.Delete(key)
	}
	if err := b.Put(key, data); err != nil {
		return fmt.Errorf("write record trust %s: %w", key, err)
	}
	return nil
}

func rootHash(root []byte) digest.Digest {
	if root == nil {
		return ""
	}
	return digest.FromBytes(root)
}
