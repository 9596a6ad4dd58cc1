package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

const trustRepository = "registry.example/plant/trust"

// signers are keys without a password, by name: made when first asked for, once for all tests.
var (
	signersMu sync.Mutex
	signersBy = map[string]*sign.Signer{}
)

func signer(t testing.TB, name string) *sign.Signer {
	t.Helper()
	signersMu.Lock()
	defer signersMu.Unlock()
	if s := signersBy[name]; s != nil {
		return s
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hand, err := signature.LoadECDSASignerVerifier(key, 5)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sign.NewKeySigner(hand, sign.Options{Name: name, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	signersBy[name] = s
	return s
}

// quoted is a string as both JSON and YAML write it.
func quoted(s string) string {
	b, _ := json.Marshal(s) // strings only
	return string(b)
}

// doc is a policy in the making.
type doc struct {
	version   uint64
	expires   string
	keys      map[string]string // name to more members: ", notAfter: …"
	revoked   []string          // names
	scope     string
	rule      []string // names of keys that states need
	more      string   // further rules
	signers   []string
	threshold int
	at        string
	extra     string
}

// plain is a policy with three signers of which two must sign.
func plain(version uint64) doc {
	return doc{version: version, scope: "registry.example/plant/**", rule: []string{"release"}, signers: []string{"root-1", "root-2", "root-3"}, threshold: 2, at: trustRepository}
}

func (d doc) text(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "version: %d   # counted up by hand\n", d.version)
	if d.expires != "" {
		fmt.Fprintf(&b, "expires: %s\n", d.expires)
	}
	names := map[string]bool{}
	for _, n := range slices.Concat(d.signers, d.revoked, slices.Collect(maps.Keys(d.keys)), d.rule) {
		names[n] = true
	}
	b.WriteString("keys:\n")
	for _, n := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "  - {name: %s, pem: %s%s}\n", n, quoted(string(signer(t, n).PublicPEM())), d.keys[n])
	}
	fmt.Fprintf(&b, "rules:\n  - scope: %q\n    signers: [%s]\n%s", d.scope, strings.Join(d.rule, ", "), d.more)
	if len(d.revoked) > 0 {
		b.WriteString("revoked:\n")
		for _, n := range d.revoked {
			fmt.Fprintf(&b, "  - {key: %q, reason: lost}\n", signer(t, n).Key().Fingerprint)
		}
	}
	if d.at != "" {
		fmt.Fprintf(&b, "trust:\n  repository: %s\n  signers: [%s]\n  threshold: %d\n", d.at, strings.Join(d.signers, ", "), d.threshold)
	}
	return b.String() + d.extra
}

func (d doc) policy(t testing.TB) *Policy {
	t.Helper()
	p, err := ParseTravelling([]byte(d.text(t)), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, d.text(t))
	}
	return p
}

// repository is a place for policies, in memory.
type repository struct {
	*signingtest.Memory
	mu   sync.Mutex
	tags map[string]bool
}

func newRepository() *repository {
	r := &repository{Memory: signingtest.NewMemory(), tags: map[string]bool{}}
	r.Repository = trustRepository
	return r
}

// PushManifest implements [signing.Store].
func (r *repository) PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	if err := r.Memory.PushManifest(ctx, d, data, tag); err != nil || tag == "" {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[tag] = true
	return nil
}

// CompareAndSetTag implements [Place].
func (r *repository) CompareAndSetTag(ctx context.Context, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	return swapTag(ctx, r, d, data, tag, was)
}

func swapTag(ctx context.Context, at signing.Store, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	look := func() (digest.Digest, error) {
		there, err := at.Resolve(ctx, tag)
		if errors.Is(err, fault.ErrNotFound) {
			err = nil
		}
		if err == nil && there.Digest != was && there.Digest != d.Digest {
			err = fmt.Errorf("%s names %s: %w", tag, there.Digest, fault.ErrConflict)
		}
		return there.Digest, err
	}
	if there, err := look(); err != nil || there == d.Digest {
		return err
	}
	if err := at.PushManifest(ctx, d, data, tag); err != nil {
		return err
	}
	was = d.Digest
	<-time.After(20 * time.Millisecond) // the other one may have looked already
	_, err := look()
	return err
}

// Tags implements [Place].
func (r *repository) Tags(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.tags)), nil
}

// push packs a document, signs it and points a tag at it; "" is the version's own.
func (r *repository) push(t testing.TB, d doc, tag string, by ...string) digest.Digest {
	t.Helper()
	return r.pushText(t, d.version, d.text(t), tag, by...)
}

func (r *repository) pushText(t testing.TB, version uint64, text, tag string, by ...string) digest.Digest {
	t.Helper()
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: version, Policy: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	if tag == "" {
		tag = artifacts.TrustTag(version)
	}
	return r.pushArtifact(t, a, tag, by...)
}

func (r *repository) pushArtifact(t testing.TB, a *artifacts.Artifact, tag string, by ...string) digest.Digest {
	t.Helper()
	for _, b := range a.Blobs {
		if err := r.PushBlob(t.Context(), b.Descriptor, b.Data); err != nil {
			t.Fatal(err)
		}
	}
	d := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err := r.PushManifest(t.Context(), d, a.Manifest, tag); err != nil {
		t.Fatal(err)
	}
	for _, n := range by {
		if _, err := signer(t, n).Sign(t.Context(), r, d); err != nil {
			t.Fatal(err)
		}
	}
	return d.Digest
}

// keeper keeps a version in memory, as agent.db does.
type keeper struct {
	kept  *Kept
	saves int
	err   error // of Save
	lost  error // of Load
	held  *Held

	saving func()     // is called by Save; nil: nothing
	saved  func(Kept) // is told what was saved; nil: nobody
}

func (k *keeper) Load() (*Kept, error) { return k.kept, k.lost }

func (k *keeper) LoadHeld() (*Held, error) { return k.held, nil }

func (k *keeper) SaveHeld(h Held) error {
	k.held = &h
	return k.err
}

func (k *keeper) Save(x Kept) error {
	if k.saving != nil {
		k.saving()
	}
	if k.err != nil {
		return k.err
	}
	if old := k.kept; old != nil && old.Anchor == x.Anchor && x.Version <= old.Version {
		return fault.ErrRollback
	}
	k.kept = &x
	if k.saved != nil {
		k.saved(x)
	}
	k.saves++
	return nil
}

// device follows a repository.
type device struct {
	t     testing.TB
	file  string // the policy file's text
	at    map[string]*repository
	keep  *keeper
	clock time.Time
	*Follower
}

func newDevice(t testing.TB, at *repository, file string) *device {
	d := &device{t: t, file: file, at: map[string]*repository{at.Repository: at}, keep: &keeper{}, clock: now}
	d.restart()
	return d
}

func (d *device) restart() {
	d.Follower = NewFollower(FollowerOptions{
		File: "/etc/longshore/trust.yaml",
		Read: func(path string, _ int64) ([]byte, error) {
			if path != "/etc/longshore/trust.yaml" || d.file == "" {
				return nil, fmt.Errorf("read %s: %w", path, fault.ErrNotFound)
			}
			return []byte(d.file), nil
		},
		Open: func(_ context.Context, name string) (signing.Source, error) {
			if r := d.at[name]; r != nil {
				return r, nil
			}
			return nil, fmt.Errorf("open %s: %w", name, fault.ErrTemporary)
		},
		Keep: d.keep, Now: func() time.Time { return d.clock },
	})
}

// Refresh takes over all that follows.
func (d *device) Refresh(ctx context.Context) ([]*Step, error) {
	taken, _, err := d.Follower.Refresh(ctx, nil)
	return taken, err
}

// version is that of the policy that decides; 0: none does.
func (d *device) version() uint64 {
	p, err := d.Policy()
	if err != nil {
		return 0
	}
	return p.Version
}
