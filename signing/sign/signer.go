package sign

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// ParseFormat reads a format's name; "" is signing.FormatBundle.
func ParseFormat(s string) (signing.Format, error) {
	switch f := signing.Format(s); f {
	case "":
		return signing.FormatBundle, nil
	case signing.FormatBundle, signing.FormatLegacy, signing.FormatBoth:
		return f, nil
	}
	return "", fmt.Errorf("signature format %q: %w: not bundle, legacy or both", s, fault.ErrInvalid)
}

// Options say how to sign. The zero value writes a bundle with no claim but the digest, also when there is one.
type Options struct {
	Name        string            // what to call the key in results; "" is its fingerprint
	Format      signing.Format    // "" is signing.FormatBundle
	Annotations map[string]string // claims that are signed with the digest; `cosign verify -a` can ask for them
	Time        time.Time         // when, as a signed claim; zero: no such claim
	// Once looks first, and writes nothing in a format in which the key has signed the same claims (other than the time).
	Once bool
	// Place opens the repository for signatures and statements where that is not the artifact's own, as cosign's
	// COSIGN_REPOSITORY does; nil: they go beside the artifact.
	Place func(ctx context.Context, beside signing.Store) (signing.Store, error)
}

// Signer signs with one key or as one identity. It is safe for concurrent use when what it was made of is.
type Signer struct {
	options Options
	key     signing.Key // zero of an identity
	public  []byte      // PEM of key
	// sign makes the signature of a message; nil of an identity.
	sign    func(ctx context.Context, message []byte) ([]byte, error)
	keyless Keyless
	self    signing.Verifier // finds what this signer signed; nil: Once cannot look
}

// NewSigner is [NewKeySigner] of what [Unlock] opens.
func NewSigner(private, password []byte, o Options) (*Signer, error) {
	key, err := Unlock(private, password)
	if err != nil {
		return nil, err
	}
	return NewKeySigner(key, o)
}

// NewKeySigner signs with a key, wherever that is.
func NewKeySigner(private PrivateKey, o Options) (*Signer, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	pub, err := private.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	key, err := signing.NewKey(o.Name, pub)
	if err != nil {
		return nil, err
	}
	key.Name = cmp.Or(key.Name, key.Fingerprint.String())
	public, err := cryptoutils.MarshalPublicKeyToPEM(pub)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	sign := func(ctx context.Context, message []byte) ([]byte, error) {
		return private.SignMessage(bytes.NewReader(message), options.WithContext(ctx))
	}
	return &Signer{options: o, key: key, public: public, sign: sign, self: key}, nil
}

// Keyless makes a whole bundle of an in-toto statement: what an identity does, whose key is used for one signature.
type Keyless func(ctx context.Context, statement []byte) (bundle []byte, err error)

// NewKeylessSigner signs as an identity (sign/keyless), in bundles only. self finds what it signed before; nil: Once cannot
// look, and signs again.
func NewKeylessSigner(keyless Keyless, self signing.Verifier, o Options) (*Signer, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	if o.Format != signing.FormatBundle {
		return nil, fmt.Errorf("signature format %s: %w: an identity's signature is a bundle", o.Format, fault.ErrUnsupported)
	}
	return &Signer{options: o, keyless: keyless, self: self}, nil
}

func (o Options) checked() (Options, error) {
	format, err := ParseFormat(string(o.Format))
	if err != nil {
		return o, err
	}
	if _, taken := o.Annotations[signing.AnnotationTime]; taken {
		return o, fmt.Errorf("signature annotation %s: %w: reserved for the time of signing", signing.AnnotationTime, fault.ErrInvalid)
	}
	o.Format, o.Annotations = format, maps.Clone(o.Annotations)
	return o, nil
}

// Key is the public half; the zero Key of an identity.
func (s *Signer) Key() signing.Key { return s.key }

// Name is what signatures are called in results: the key's name, or the identity's.
func (s *Signer) Name() string {
	if s.keyless != nil {
		return s.options.Name
	}
	return s.key.Name
}

// Self finds what this signer signed; nil where its identity is not known before it signs.
func (s *Signer) Self() signing.Verifier { return s.self }

// PublicPEM is the public half as a file; nil of an identity.
func (s *Signer) PublicPEM() []byte { return bytes.Clone(s.public) }

// Sign signs subject's digest and stores the signature beside it. It returns what was written, or found with Once,
// one for each format. The subject need not be readable, only its descriptor must be right.
func (s *Signer) Sign(ctx context.Context, st signing.Store, subject ocispec.Descriptor) ([]signing.Signature, error) {
	return s.signAs(ctx, st, subject, s.options.Once)
}

// SignFresh is Sign of a subject that cannot have been signed yet: also with Once it does not look first.
func (s *Signer) SignFresh(ctx context.Context, st signing.Store, subject ocispec.Descriptor) ([]signing.Signature, error) {
	return s.signAs(ctx, st, subject, false)
}

func (s *Signer) signAs(ctx context.Context, st signing.Store, subject ocispec.Descriptor, once bool) ([]signing.Signature, error) {
	if err := signing.CheckSubject(st, subject); err != nil {
		return nil, err
	}
	name := st.Name()
	st, err := s.place(ctx, st)
	if err != nil {
		return nil, err
	}
	formats := []signing.Format{s.options.Format}
	if s.options.Format == signing.FormatBoth {
		formats = []signing.Format{signing.FormatBundle, signing.FormatLegacy}
	}
	var made []signing.Signature
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
		if f == signing.FormatLegacy {
			d, err = s.writeLegacy(ctx, st, name, subject)
		} else {
			d, err = s.writeBundle(ctx, st, subject, Statement{Type: signing.PredicateSign, Annotations: s.claims(s.options.Annotations)})
		}
		if err != nil {
			return made, fmt.Errorf("sign %s@%s: %w", st.Name(), subject.Digest, err)
		}
		made = append(made, s.signature(f, d, s.options.Annotations))
	}
	return made, nil
}

// place is the repository for what s signs.
func (s *Signer) place(ctx context.Context, beside signing.Store) (signing.Store, error) {
	if s.options.Place == nil {
		return beside, nil
	}
	st, err := s.options.Place(ctx, beside)
	if err != nil {
		return nil, fmt.Errorf("open the repository for signatures of %s: %w", beside.Name(), err)
	}
	return st, nil
}

// signature describes what was written.
func (s *Signer) signature(f signing.Format, d digest.Digest, annotations map[string]string) signing.Signature {
	made := signing.Signature{By: s.Name(), Format: f, Digest: d, Time: s.options.Time, Annotations: maps.Clone(annotations)}
	if s.keyless == nil {
		made.Verification = signing.Verification{Principal: s.key.Fingerprint.String(), Fingerprint: s.key.Fingerprint, Algorithm: s.key.Algorithm}
	}
	return made
}

// claims are annotations as they are signed: with the time.
func (s *Signer) claims(annotations map[string]string) map[string]string {
	if _, there := annotations[signing.AnnotationTime]; there || s.options.Time.IsZero() {
		return annotations
	}
	c := maps.Clone(annotations)
	if c == nil {
		c = make(map[string]string)
	}
	c[signing.AnnotationTime] = s.options.Time.UTC().Format(time.RFC3339)
	return c
}

// find looks for a signature in one format by the same key with the same claims.
func (s *Signer) find(ctx context.Context, st signing.Store, subject ocispec.Descriptor, f signing.Format) (*signing.Signature, error) {
	e, err := signing.Examine(ctx, st, subject, signing.Query{PredicateType: signing.PredicateSign, Verifiers: []signing.Verifier{s.self}, Format: f})
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

func descriptorOf(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
