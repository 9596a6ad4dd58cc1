package intake

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// Source reads artifacts by reference from wherever they are: a registry, its mirrors, a layout.
// Errors say what was asked and wrap the sentinels of artifacts/fault; bytes are bounded and hashed before they are returned.
type Source interface {
	// Resolve asks what a tag points at: one HEAD when all is well. repository has no scheme.
	Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
	// EachResolve gives enough what a tag points at, at each mirror that may say so and then at the place itself, until it
	// reports true. An error says why the place itself could not be asked; fault.ErrNotFound says that it has no such tag.
	EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error
	// Manifest returns a manifest's exact bytes, at most 1 MiB, and its descriptor.
	Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
	// Blob returns a blob's exact bytes; d.Size bounds the read, and limit bounds d.Size.
	Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error)
}

// Kind is what an artifact is to the trust policy.
type Kind string

// Kinds of artifacts that a policy can speak about.
const (
	KindState     Kind = "state"
	KindComponent Kind = "component"
	KindImage     Kind = "image"
)

// Verdict is what a verifier found out about an artifact that it lets pass.
type Verdict struct {
	SignedBy []string                 // names of the policy's keys that signed, in the policy's order; empty: no signature was asked for
	Insecure bool                     // the policy allows unsigned artifacts here, spelled out
	Keys     map[string]digest.Digest // fingerprints of the keys that signed, by name
	SignedAt time.Time                // the earliest time that one of SignedBy says to have signed at; zero: one of them does not say
	Until    time.Time                // when time alone may change the verdict; zero: never
	Kept     []Kept                   // what of its signatures and attestations counted, for [Reverifier]
}

// Verifier holds an artifact against the device's trust policy. A nil error means: may be used.
// It distinguishes "could not find out" (fault.ErrTemporary) from "not signed", "badly signed" and "rejected".
type Verifier interface {
	Verify(ctx context.Context, kind Kind, repository string, d ocispec.Descriptor) (Verdict, error)
}

// Kept is a signature or an attestation that counted.
type Kept struct {
	About json.RawMessage    `json:"about"` // what the verifier wants to know of it again
	Blob  ocispec.Descriptor `json:"blob"`
	Data  []byte             `json:"-"` // of Blob; nil: it is on the device
}

func (k Kept) same(o Kept) bool {
	return string(k.About) == string(o.About) && k.Blob.Digest == o.Blob.Digest && maps.Equal(k.Blob.Annotations, o.Blob.Annotations)
}

// Reverifier is a [Verifier] that holds an artifact against the trust policy as it is now, by what verdicts kept, also of other artifacts, and
// without a network connection. read reads a Blob from the device; its digest has been checked.
type Reverifier interface {
	Reverify(ctx context.Context, part Part, kept []Kept, read func(ctx context.Context, blob ocispec.Descriptor) ([]byte, error)) error
}

// Part is an artifact that a generation consists of.
type Part struct {
	Kind       Kind
	Repository string
	Artifact   ocispec.Descriptor
}

// Content keeps the small verified artifacts of this device: manifests, deployments, Compose Archives.
type Content interface {
	// Get returns bytes whose digest it has checked again. fault.ErrNotFound when they are not here, also when what is
	// here is damaged.
	Get(ctx context.Context, d digest.Digest) ([]byte, error)
	// Stage keeps content for Get, until the program ends. It does nothing when the content is there.
	Stage(ctx context.Context, d ocispec.Descriptor, data []byte) error
	// StageSpare is Stage for what a state can do without: it leaves the disk space that is kept for Stage.
	StageSpare(ctx context.Context, d ocispec.Descriptor, data []byte) error
	// Sync returns when all content that was staged is durable: a state is accepted after that.
	Sync(ctx context.Context) error
	// Retain removes everything but keep.
	Retain(ctx context.Context, keep []digest.Digest) error
	// Yield calls do and returns its error; meanwhile the disk space that is kept for Stage is free for what do needs.
	Yield(do func() error) error
}

// Freshness is what is known of how long a state is the current one.
type Freshness struct {
	Required bool     // the policy asks for a statement; without it the rest is empty
	Signers  []string // who may make one, as the policy names them
	By       string   // who made the newest good one, several with ", " between them; "": there is none
	IssuedAt time.Time
	NotAfter time.Time // it has ended from then on
}

// Fresher finds the newest good freshness statement about a state, whether it has ended or not. Where the policy asks for one
// and there is none the error says why, as a [Verifier] does, and Required and Signers are set all the same.
type Fresher interface {
	Freshness(ctx context.Context, repository string, d ocispec.Descriptor, tag string, generation uint64) (Freshness, error)
}

// Trust follows the trust policy from version to version. Its calls may come from several goroutines.
type Trust interface {
	// Refresh asks for the versions that follow the one in use and takes them over one by one, each on the disk before it
	// counts. It returns those that it took, also with an error; the error's code ([codes.Error]) says why it went no further.
	// No next version is no error. A version that hold reports true of is held back and returned; of it and of those after it
	// only the revocations count. A nil hold holds nothing back.
	Refresh(ctx context.Context, hold func(TrustVersion) bool) (taken []TrustVersion, held *TrustVersion, err error)
	// Status returns which policy decides, as of the last look at it. It does not wait, and is never asked in a transaction of
	// the agent's store, which Refresh may write to.
	Status() status.Trust
	// Signers are the names of those whose signatures the policy counts, at whatever time; nil: no policy decides.
	Signers() []string
	// Revoked returns which of these the policy revokes: keys by their fingerprint, and digests of content.
	Revoked(keys, content []digest.Digest) []store.Revocation
}

// TrustVersion is one version of the trust policy.
type TrustVersion struct {
	Version  uint64
	Digest   digest.Digest // of the artifact's manifest
	SignedBy []string      // names of the keys that signed it, by the version before
	Changes  []string      // what it changes, for people, one sentence each; only where it may be held back
	// Parted is the digest of the version before as the device had it, where this one follows another of that number; "": it
	// follows what was there, or it is not known.
	Parted digest.Digest
}
