package signing

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Format is where and how a signature is stored.
type Format string

// Formats of signatures.
const (
	// FormatBundle is a sigstore bundle in a referrer: cosign 3's own format, read by 2.6 too.
	FormatBundle Format = "bundle"
	// FormatLegacy is a simple signing payload under the tag "sha256-<hex>.sig". Writing it is a read, an append and a
	// write of one tag, so signers at the same moment may lose to each other; Sign looks again and repeats.
	FormatLegacy Format = "legacy"
	// FormatBoth is one of each. cosign 2.6 then wants a --trusted-root, also for the legacy one.
	FormatBoth Format = "both"
)

// ParseFormat reads a format's name; "" is FormatBundle.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "":
		return FormatBundle, nil
	case FormatBundle, FormatLegacy, FormatBoth:
		return f, nil
	}
	return "", fmt.Errorf("signature format %q: %w: not bundle, legacy or both", s, fault.ErrInvalid)
}

// timeClaim is the signed annotation in which a signer says when it signed.
const timeClaim = "dev.longshore.signed"

// SignOptions say how to sign. The zero value writes a bundle with no claim but the digest, also when there is one.
type SignOptions struct {
	Name        string            // what to call the key in results; "" is its fingerprint
	Format      Format            // "" is FormatBundle
	Annotations map[string]string // claims that are signed with the digest; `cosign verify -a` can ask for them
	Time        time.Time         // when, as a signed claim; zero: no such claim
	// Once looks first, and writes nothing in a format in which the key has signed the same claims (other than the time).
	Once bool
	// Place opens where signatures and statements go in the place of the artifact's own repository, as cosign's
	// COSIGN_REPOSITORY does; nil: they go beside the artifact.
	Place func(ctx context.Context, beside Store) (Store, error)
}

// Signer signs in one name. It is safe for concurrent use when what it was made of is.
type Signer struct {
	options SignOptions
	key     Key    // zero with seal
	public  []byte // PEM of key
	// sign makes the signature of a message; nil with seal.
	sign func(ctx context.Context, message []byte) ([]byte, error)
	seal Seal
	self Trustee // who finds what this signer signed; nil: Once cannot look
}

// NewSigner is [NewKeySigner] of what [Unlock] opens.
func NewSigner(private, password []byte, o SignOptions) (*Signer, error) {
	hand, err := Unlock(private, password)
	if err != nil {
		return nil, err
	}
	return NewKeySigner(hand, o)
}

// NewKeySigner signs with a key, wherever that is.
func NewKeySigner(hand PrivateKey, o SignOptions) (*Signer, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	pub, err := hand.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	key, err := newKey(o.Name, pub)
	if err != nil {
		return nil, err
	}
	if key.Name == "" {
		key.Name = key.Fingerprint.String()
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(pub)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	sign := func(ctx context.Context, message []byte) ([]byte, error) {
		return hand.SignMessage(bytes.NewReader(message), options.WithContext(ctx))
	}
	return &Signer{options: o, key: key, public: public, sign: sign, self: key}, nil
}

// Seal makes a whole bundle of an in-toto statement: what an identity does, whose key lives for one signature.
type Seal func(ctx context.Context, statement []byte) (bundle []byte, err error)

// NewSealSigner signs with an identity (signing/keyless), in bundles only. self finds what it signed before; nil: Once
// cannot look, and signs again.
func NewSealSigner(seal Seal, self Trustee, o SignOptions) (*Signer, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	if o.Format != FormatBundle {
		return nil, fmt.Errorf("signature format %s: %w: an identity's signature is a bundle", o.Format, fault.ErrUnsupported)
	}
	return &Signer{options: o, seal: seal, self: self}, nil
}

func (o SignOptions) checked() (SignOptions, error) {
	format, err := ParseFormat(string(o.Format))
	if err != nil {
		return o, err
	}
	if _, taken := o.Annotations[timeClaim]; taken {
		return o, fmt.Errorf("signature annotation %s: %w: reserved for the time of signing", timeClaim, fault.ErrInvalid)
	}
	o.Format, o.Annotations = format, maps.Clone(o.Annotations)
	return o, nil
}

// Key is the public half; the zero Key of an identity.
func (s *Signer) Key() Key { return s.key }

// Name is what signatures are called in results: the key's name, or the identity's.
func (s *Signer) Name() string {
	if s.seal != nil {
		return s.options.Name
	}
	return s.key.Name
}

// Self finds what this signer signed; nil when it cannot be told what it signs as.
func (s *Signer) Self() Trustee { return s.self }

// PublicPEM is the public half as a file; nil of an identity.
func (s *Signer) PublicPEM() []byte { return bytes.Clone(s.public) }

// Sign signs subject's digest and stores the signature beside it. It returns what was written, or found with Once,
// one for each format. The subject need not be readable, only its descriptor must be right.
func (s *Signer) Sign(ctx context.Context, st Store, subject ocispec.Descriptor) ([]Signature, error) {
	return s.signAs(ctx, st, subject, s.options.Once)
}

// SignFresh is Sign of a subject that nobody can have signed yet: also with Once it does not look first.
func (s *Signer) SignFresh(ctx context.Context, st Store, subject ocispec.Descriptor) ([]Signature, error) {
	return s.signAs(ctx, st, subject, false)
}

func (s *Signer) signAs(ctx context.Context, st Store, subject ocispec.Descriptor, once bool) ([]Signature, error) {
	if err := checkSubject(st, subject); err != nil {
		return nil, err
	}
	name := st.Name()
	st, err := s.place(ctx, st)
	if err != nil {
		return nil, err
	}
	formats := []Format{s.options.Format}
	if s.options.Format == FormatBoth {
		formats = []Format{FormatBundle, FormatLegacy}
	}
	var made []Signature
	for _, f := range formats {
		if once && s.self != nil {
			found, err := s.find(ctx, st, subject, f)
			if err != nil {
				return made, err
			}
			if found != nil {
				made = append(made, *found)
				continue
			}
		}
		var d digest.Digest
		var err error
		if f == FormatLegacy {
			d, err = s.writeLegacy(ctx, st, name, subject)
		} else {
			d, err = s.writeBundle(ctx, st, subject, Statement{Type: PredicateSign, Annotations: s.claims(s.options.Annotations)})
		}
		if err != nil {
			return made, fmt.Errorf("sign %s@%s: %w", st.Name(), subject.Digest, err)
		}
		made = append(made, s.signature(f, d))
	}
	return made, nil
}

// place is where what s signs goes.
func (s *Signer) place(ctx context.Context, beside Store) (Store, error) {
	if s.options.Place == nil {
		return beside, nil
	}
	st, err := s.options.Place(ctx, beside)
	if err != nil {
		return nil, fmt.Errorf("open the repository for signatures of %s: %w", beside.Name(), err)
	}
	return st, nil
}

func (s *Signer) signature(f Format, d digest.Digest) Signature {
	if s.seal != nil {
		return Signature{By: s.options.Name, Format: f, Digest: d, Time: s.options.Time, Annotations: maps.Clone(s.options.Annotations)}
	}
	return Signature{
		By: s.key.Name, Vouching: Vouching{Principal: s.key.Fingerprint.String(), Fingerprint: s.key.Fingerprint, Algorithm: s.key.Algorithm},
		Format: f, Digest: d, Time: s.options.Time, Annotations: maps.Clone(s.options.Annotations),
	}
}

// claims are annotations as they are signed: with the time.
func (s *Signer) claims(annotations map[string]string) map[string]string {
	if _, there := annotations[timeClaim]; there || s.options.Time.IsZero() {
		return annotations
	}
	c := maps.Clone(annotations)
	if c == nil {
		c = make(map[string]string)
	}
	c[timeClaim] = s.options.Time.UTC().Format(time.RFC3339)
	return c
}

// find looks for a signature in one format by the same key with the same claims.
func (s *Signer) find(ctx context.Context, st Store, subject ocispec.Descriptor, f Format) (*Signature, error) {
	e, err := Examine(ctx, st, subject, Query{PredicateType: PredicateSign, Trustees: []Trustee{s.self}, Format: f})
	if err != nil {
		return nil, err
	}
	for _, sig := range e.Good {
		if sig.Format == f && maps.Equal(sig.Annotations, s.options.Annotations) {
			return &sig, nil
		}
	}
	if e.Unread != nil {
		return nil, fmt.Errorf("look for a signature of %s@%s: %w", st.Name(), subject.Digest, e.Unread)
	}
	return nil, nil
}

func checkSubject(st Source, subject ocispec.Descriptor) error {
	if err := subject.Digest.Validate(); err != nil {
		return fmt.Errorf("%s@%s: %w: %w", st.Name(), subject.Digest, fault.ErrInvalid, err)
	}
	if subject.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%s@%s: %w: cosign's signatures are of sha256 digests only", st.Name(), subject.Digest, fault.ErrUnsupported)
	}
	return nil
}

func descriptorOf(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
