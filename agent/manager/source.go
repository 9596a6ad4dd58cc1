package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Registry is where components, images and signed states are. [registry.Client] is one.
type Registry interface {
	Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
	EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error
	Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
	Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error)
}

// Source is desired state as a manager tells it, and everything else from a registry. It implements [intake.Source].
//
// Without States the state is the State Manifest itself, in the repository [Client.Name]: it is not signed, and the trust
// policy decides whether that is accepted. With States the manager only says which State Manifest is the current one, and the
// state is the signed artifact of that repository that has it as its first layer: a manager cannot make the device run what
// nobody has signed.
type Source struct {
	Registry
	client *Client
	states string               // "host/path"; "": manifests are not signed
	have   func() digest.Digest // of the State Manifest that was accepted before a restart

	mu    sync.Mutex
	last  digest.Digest      // of the State Manifest that the manager named last
	body  []byte             // of it, until the manager says that it has not changed
	state ocispec.Descriptor // of the signed artifact with it; no digest: not looked for, or not found
}

// NewSource asks nobody yet. have returns the digest of the accepted state, "" for none, where that is a State Manifest; it is
// called once. It may be nil.
func NewSource(c *Client, r Registry, states string, have func() digest.Digest) *Source {
	if have == nil {
		have = func() digest.Digest { return "" }
	}
	return &Source{Registry: r, client: c, states: states, have: sync.OnceValue(have)}
}

// Repository is where the agent looks for states: the manager's name, or the repository of signed states.
func (s *Source) Repository() string {
	if s.states != "" {
		return s.states
	}
	return s.client.Name()
}

func (s *Source) EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error {
	if repository != s.Repository() {
		return s.Registry.EachResolve(ctx, repository, tag, enough)
	}
	d, err := s.current(ctx)
	if err != nil {
		return fmt.Errorf("ask %s: %w", s.client.base, err)
	}
	if s.states == "" {
		enough(d)
		return nil
	}
	return s.signed(ctx, tag, d, enough)
}

// current asks the manager which State Manifest is the current one: its name, by its ETag, which whoever reads it has to hold
// against the bytes. A size of 0 is not known.
func (s *Source) current(ctx context.Context) (ocispec.Descriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, etag := s.last, ""
	if have == "" && s.states == "" {
		have = s.have()
	}
	if have != "" {
		etag = `"` + have.String() + `"`
	}
	a, err := s.client.get(ctx, pathManifest, margo.ManifestMediaType, etag, artifacts.MaxDocument)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: margo.ManifestMediaType, Digest: have}
	if !a.unchanged {
		d.Size, d.Digest = int64(len(a.body)), digest.FromBytes(a.body)
		if a.etag != "" {
			d.Digest = digest.Digest(strings.Trim(strings.TrimPrefix(a.etag, "W/"), `"`)) // proxies that compress make it a weak one
		}
	}
	if d.Digest != s.last {
		s.state = ocispec.Descriptor{}
	}
	s.last, s.body = d.Digest, a.body
	return d, nil
}

// manifest is the State Manifest of a digest, as long as the manager names it. It may be other bytes.
func (s *Source) manifest(ctx context.Context, d digest.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.body == nil || s.last != d {
		a, err := s.client.get(ctx, pathManifest, margo.ManifestMediaType, "", artifacts.MaxDocument)
		if err != nil {
			return nil, err
		}
		if digest.FromBytes(a.body) != d {
			return nil, fmt.Errorf("it names another State Manifest by now: %w", fault.ErrNotFound)
		}
		s.body, s.last = a.body, d
	}
	return s.body, nil
}

func (s *Source) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if repository != s.client.Name() {
		return s.Registry.Manifest(ctx, repository, d)
	}
	data, err := s.manifest(ctx, d)
	if err != nil {
		err = fmt.Errorf("ask %s for %s: %w", s.client.base, d, err)
	}
	return ocispec.Descriptor{MediaType: margo.ManifestMediaType, Digest: d, Size: int64(len(data))}, data, err
}

// Blob implements [intake.Source]. What the manager has is at d's URL, a path that [artifacts.OpenStateManifest] has checked.
func (s *Source) Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if repository != s.client.Name() {
		return s.Registry.Blob(ctx, repository, d, limit)
	}
	if len(d.URLs) != 1 {
		return nil, fmt.Errorf("nothing says where %s is: %w", d.Digest, fault.ErrNotFound)
	}
	media := d.MediaType
	if media != margo.BundleMediaType { // no size is told: thousands of them must not fill the disk
		media, limit = "application/yaml", min(limit, strict.MaxYAML)
	}
	a, err := s.client.get(ctx, d.URLs[0], media, "", limit)
	if err != nil {
		return nil, fmt.Errorf("ask %s for %s: %w", s.client.base, d.Digest, err)
	}
	return a.body, nil
}

// signed finds the signed artifact that has the State Manifest d: mostly the newest, else the one of its version.
func (s *Source) signed(ctx context.Context, tag string, d ocispec.Descriptor, enough func(ocispec.Descriptor) bool) error {
	s.mu.Lock()
	known := s.state
	s.mu.Unlock()
	if known.Digest != "" {
		enough(known)
		return nil
	}
	data, err := s.manifest(ctx, d.Digest)
	if err != nil {
		return fmt.Errorf("ask %s: %w", s.client.base, err)
	}
	if got := digest.FromBytes(data); got != d.Digest {
		return fmt.Errorf("ask %s: its ETag is %s, the State Manifest is %s: %w", s.client.base, clip(d.Digest.String()), got, fault.ErrDigestMismatch)
	}
	m, err := margo.ParseStateManifest("State Manifest", data)
	if err != nil {
		return fmt.Errorf("ask %s: %w", s.client.base, err)
	}
	found := false
	for _, t := range []string{tag, artifacts.HistoryTag(tag, m.ManifestVersion)} {
		var read error
		err := s.Registry.EachResolve(ctx, s.states, t, func(x ocispec.Descriptor) bool {
			var has bool
			if has, read = s.has(ctx, x.Digest, d.Digest); !has {
				return false
			}
			found = true
			s.mu.Lock()
			s.state = x
			s.mu.Unlock()
			return enough(x)
		})
		switch {
		case found:
			return nil
		case err != nil && !errors.Is(err, fault.ErrNotFound):
			return err
		case read != nil:
			return fmt.Errorf("read %s:%s: %w", s.states, t, read)
		}
	}
	return fault.WithHint(fmt.Errorf("%s names version %d (%s), and neither %s:%s nor %s has it: %w", s.client.base, m.ManifestVersion, d.Digest,
		s.states, tag, artifacts.HistoryTag(tag, m.ManifestVersion), fault.ErrUnsigned),
		"the manager must serve states of this repository as they are; for unsigned ones of the manager remove state from agent.yaml, and accept them in trust.yaml")
}

// has reports whether a state artifact has a State Manifest as its first layer. Nothing is trusted yet.
func (s *Source) has(ctx context.Context, state, manifest digest.Digest) (bool, error) {
	_, data, err := s.Registry.Manifest(ctx, s.states, state)
	if err != nil {
		return false, err
	}
	x, err := artifacts.OpenState(data)
	return err == nil && x.Manifest.Digest == manifest, nil
}
