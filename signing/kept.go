package signing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Piece is a signature or another statement as it was read: with it a [KeptSource] shows it again. Its JSON is on devices.
type Piece struct {
	Repository string        `json:"repository"` // that it was read from
	Subject    digest.Digest `json:"subject"`
	Type       string        `json:"type"`  // predicate type; [PredicateSign]: a signature
	Where      string        `json:"where"` // as in [Remark]
	At         digest.Digest `json:"at"`    // as in [Signature].Digest

	// Layer and Data are what is signed. Only those annotations are there that belong to the signature.
	Layer ocispec.Descriptor `json:"-"`
	Data  []byte             `json:"-"`
}

// Keeper holds the good signatures that an examination reads, one of each signer, so that those that count can be kept: [Keeper.Pieces]. What others
// put beside them takes no room. It is of one goroutine.
type Keeper struct {
	read []keptPiece
}

type keptPiece struct {
	by signedBy
	Piece
}

// signedBy identifies a good signature.
type signedBy struct {
	format    Format
	at, key   digest.Digest
	principal string
}

func signerOf(s Signature) signedBy { return signedBy{s.Format, s.Digest, s.Fingerprint, s.Principal} }

func (k *Keeper) add(s Signature, p Piece) {
	l := p.Layer
	p.Layer = ocispec.Descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}
	if s.Format == FormatLegacy {
		p.Layer.Annotations = maps.Clone(l.Annotations)
		maps.DeleteFunc(p.Layer.Annotations, func(name, _ string) bool {
			return name != AnnotationSignature && !strings.HasPrefix(name, "dev.sigstore.cosign/")
		})
	}
	k.read = append(k.read, keptPiece{signerOf(s), p})
}

// Pieces are those of these signatures and statements, each once.
func (k *Keeper) Pieces(counted []Signature) []Piece {
	var out []Piece
	for _, s := range counted {
		i := slices.IndexFunc(k.read, func(p keptPiece) bool { return p.by == signerOf(s) })
		if i >= 0 && !slices.ContainsFunc(out, func(p Piece) bool { return p.same(k.read[i].Piece) }) {
			out = append(out, k.read[i].Piece)
		}
	}
	return out
}

func (p Piece) same(o Piece) bool {
	return p.Repository == o.Repository && p.Type == o.Type && p.Layer.Digest == o.Layer.Digest && maps.Equal(p.Layer.Annotations, o.Layer.Annotations)
}

// KeptSource shows what was kept of a repository to [Examine], and nothing else. Nothing of it is trusted: it is verified as what a repository
// answers.
type KeptSource struct {
	Repository string
	Pieces     []Piece // without Data, of any repositories
	// Read returns the Data of a piece.
	Read func(ctx context.Context, layer ocispec.Descriptor) ([]byte, error)
}

var _ Source = KeptSource{}

// Name implements [Source].
func (s KeptSource) Name() string { return s.Repository }

// Blob implements [Source].
func (s KeptSource) Blob(ctx context.Context, d ocispec.Descriptor, _ int64) ([]byte, error) {
	return s.Read(ctx, d)
}

// Resolve implements [Source].
func (s KeptSource) Resolve(context.Context, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, s.unsupported()
}

// Manifest implements [Source].
func (s KeptSource) Manifest(context.Context, digest.Digest) (ocispec.Descriptor, []byte, error) {
	return ocispec.Descriptor{}, nil, s.unsupported()
}

// Referrers implements [Source].
func (s KeptSource) Referrers(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return nil, s.unsupported()
}

func (s KeptSource) unsupported() error {
	return fmt.Errorf("%s: only signatures were kept of it: %w", s.Repository, fault.ErrUnsupported)
}

// kept reads the pieces about the subject.
func (e *examination) kept(ctx context.Context, s KeptSource) {
	for _, p := range s.Pieces {
		if p.Repository != s.Repository || p.Subject != e.subject.Digest || p.Type != e.PredicateType || e.over {
			continue
		}
		switch p.Layer.MediaType {
		case MediaTypeSimpleSigning:
			e.legacyLayer(ctx, p.Where, p.Layer)
		case MediaTypeEnvelope:
			e.envelopeLayer(ctx, p.Where, p.Layer)
		default:
			e.bundleLayer(ctx, p.Where, p.At, p.Type, p.Layer)
		}
	}
}
