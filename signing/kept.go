package signing

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxKept bounds what a [Keeper] keeps, in bytes. Signatures of a few signers have some KiB; what others put beside them is not worth more.
const MaxKept = 512 << 10

// Keeper keeps what is read of the signatures of one subject, so that they can be verified again without the repositories: [ReadKept]. It is
// of one goroutine.
type Keeper struct {
	places map[string]*kept // by name of the repository
	size   int
}

// kept is what one repository has. Its JSON is on devices.
type kept struct {
	Referrers []ocispec.Descriptor          `json:"referrers,omitempty"` // of the subject
	Tags      map[string]ocispec.Descriptor `json:"tags,omitempty"`
	Content   []keptContent                 `json:"content,omitempty"`
}

type keptContent struct {
	Descriptor ocispec.Descriptor `json:"descriptor"`
	Data       []byte             `json:"data"`
}

// Keep returns a source through which st is read, and that keeps what it answers.
func (k *Keeper) Keep(st Source) Source {
	if k.places == nil {
		k.places = map[string]*kept{}
	}
	if k.places[st.Name()] == nil {
		k.places[st.Name()] = &kept{Tags: map[string]ocispec.Descriptor{}}
	}
	return keeping{Source: st, k: k, at: k.places[st.Name()]}
}

// Bytes are what was kept; nil: nothing was signed.
func (k *Keeper) Bytes() ([]byte, error) {
	if k.size == 0 {
		return nil, nil
	}
	return json.Marshal(k.places)
}

// note keeps something of a number of bytes, if there is room.
func (k *Keeper) note(size int, f func()) {
	if k.size+size <= MaxKept {
		k.size += size
		f()
	}
}

// keeping is a source that is kept.
type keeping struct {
	Source
	k  *Keeper
	at *kept
}

var _ Mirrored = keeping{}

// EachReferrers implements [Mirrored].
func (s keeping) EachReferrers(ctx context.Context, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error {
	return eachReferrers(ctx, s.Source, subject, func(listed []ocispec.Descriptor) bool {
		for _, d := range listed {
			s.k.note(len(d.Digest), func() { s.at.Referrers = append(s.at.Referrers, d) })
		}
		return enough(listed)
	})
}

// EachResolve implements [Mirrored].
func (s keeping) EachResolve(ctx context.Context, tag string, enough func(ocispec.Descriptor) bool) error {
	return EachResolve(ctx, s.Source, tag, func(d ocispec.Descriptor) bool {
		s.k.note(len(d.Digest), func() { s.at.Tags[tag] = d })
		return enough(d)
	})
}

// Manifest implements [Source].
func (s keeping) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	desc, data, err := s.Source.Manifest(ctx, d)
	if err == nil {
		s.content(desc, data)
	}
	return desc, data, err
}

// Blob implements [Source].
func (s keeping) Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, err := s.Source.Blob(ctx, d, limit)
	if err == nil {
		s.content(d, data)
	}
	return data, err
}

func (s keeping) content(d ocispec.Descriptor, data []byte) {
	s.k.note(len(data), func() {
		s.at.Content = append(s.at.Content, keptContent{ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, data})
	})
}

// Kept are signatures that a [Keeper] has kept.
type Kept struct{ places map[string]*kept }

// ReadKept reads the bytes of a [Keeper]. Nothing of them is trusted: they are verified as what a repository answers. No bytes are no signature.
func ReadKept(data []byte) (*Kept, error) {
	out := &Kept{places: map[string]*kept{}}
	if len(data) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(data, &out.places); err != nil {
		return nil, fmt.Errorf("read kept signatures: %w: %w", fault.ErrInvalid, err)
	}
	return out, nil
}

// Of is what was kept of a repository.
func (k *Kept) Of(repository string) Source {
	at := k.places[repository]
	if at == nil {
		at = &kept{}
	}
	return keptSource{repository, at}
}

type keptSource struct {
	name string
	at   *kept
}

// Name implements [Source].
func (s keptSource) Name() string { return s.name }

// Resolve implements [Source].
func (s keptSource) Resolve(_ context.Context, tag string) (ocispec.Descriptor, error) {
	if d, ok := s.at.Tags[tag]; ok {
		return d, nil
	}
	return ocispec.Descriptor{}, fmt.Errorf("tag %s was not kept: %w", tag, fault.ErrNotFound)
}

// Manifest implements [Source].
func (s keptSource) Manifest(_ context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	for _, c := range s.at.Content {
		if c.Descriptor.Digest == d {
			return c.Descriptor, c.Data, nil
		}
	}
	return ocispec.Descriptor{}, nil, fmt.Errorf("%s was not kept: %w", d, fault.ErrUnsupported)
}

// Blob implements [Source].
func (s keptSource) Blob(ctx context.Context, d ocispec.Descriptor, _ int64) ([]byte, error) {
	_, data, err := s.Manifest(ctx, d.Digest)
	return data, err
}

// Referrers implements [Source]. Those that were not read are none: nothing asked for them.
func (s keptSource) Referrers(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var out []ocispec.Descriptor
	for _, d := range s.at.Referrers {
		same := func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }
		if !slices.ContainsFunc(out, same) && slices.ContainsFunc(s.at.Content, func(c keptContent) bool { return same(c.Descriptor) }) {
			out = append(out, d)
		}
	}
	return out, nil
}
