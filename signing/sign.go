package signing

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/signature"

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
}

// Signer signs with one private key. It is safe for concurrent use.
type Signer struct {
	options SignOptions
	key     Key
	sv      signature.SignerVerifier
	public  []byte
}

// NewSigner unlocks a private key in cosign's format ("ENCRYPTED SIGSTORE PRIVATE KEY", or COSIGN). A wrong password is
// fault.ErrUnauthenticated.
func NewSigner(private, password []byte, o SignOptions) (*Signer, error) {
	format, err := ParseFormat(string(o.Format))
	if err != nil {
		return nil, err
	}
	if _, taken := o.Annotations[timeClaim]; taken {
		return nil, fmt.Errorf("signature annotation %s: %w: reserved for the time of signing", timeClaim, fault.ErrInvalid)
	}
	o.Format, o.Annotations = format, maps.Clone(o.Annotations)
	if err := checkPrivatePEM(private); err != nil {
		return nil, err
	}
	sv, err := cosign.LoadPrivateKey(private, password, nil)
	if err != nil {
		err = fmt.Errorf("unlock private key: %w: %w", fault.ErrUnauthenticated, err)
		return nil, fault.WithHint(err, "check the password of the key")
	}
	pub, err := sv.PublicKey()
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
	public, err := marshalPublic(pub)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	return &Signer{options: o, key: key, sv: sv, public: public}, nil
}

// checkPrivatePEM tells what is wrong with a key file before the password is blamed.
func checkPrivatePEM(private []byte) error {
	if len(private) > MaxKeyBytes {
		return fmt.Errorf("private key: %w: more than %d bytes", fault.ErrTooLarge, MaxKeyBytes)
	}
	block, _ := pem.Decode(private)
	if block == nil {
		return fmt.Errorf("private key: %w: no PEM block", fault.ErrInvalid)
	}
	switch block.Type {
	case cosign.SigstorePrivateKeyPemType, cosign.CosignPrivateKeyPemType:
	default:
		err := fmt.Errorf("private key: %w: PEM block %q", fault.ErrUnsupported, block.Type)
		return fault.WithHint(err, "make a key with: longshore key generate, or bring yours with: cosign import-key-pair")
	}
	if !json.Valid(block.Bytes) {
		return fmt.Errorf("private key: %w: the encrypted part is damaged", fault.ErrInvalid)
	}
	return nil
}

// Key is the public half.
func (s *Signer) Key() Key { return s.key }

// PublicPEM is the public half as a file.
func (s *Signer) PublicPEM() []byte { return append([]byte(nil), s.public...) }

// Sign signs subject's digest and stores the signature beside it. It returns what was written, or found with Once,
// one for each format. The subject need not be readable, only its descriptor must be right.
func (s *Signer) Sign(ctx context.Context, st Store, subject ocispec.Descriptor) ([]Signature, error) {
	if err := checkSubject(st, subject); err != nil {
		return nil, err
	}
	formats := []Format{s.options.Format}
	if s.options.Format == FormatBoth {
		formats = []Format{FormatBundle, FormatLegacy}
	}
	var made []Signature
	for _, f := range formats {
		if s.options.Once {
			found, err := s.find(ctx, st, subject, f)
			if err != nil {
				return made, err
			}
			if found != nil {
				made = append(made, *found)
				continue
			}
		}
		write := s.writeBundle
		if f == FormatLegacy {
			write = s.writeLegacy
		}
		d, err := write(ctx, st, subject)
		if err != nil {
			return made, fmt.Errorf("sign %s@%s: %w", st.Name(), subject.Digest, err)
		}
		made = append(made, s.signature(f, d))
	}
	return made, nil
}

func (s *Signer) signature(f Format, d digest.Digest) Signature {
	return Signature{
		Key: s.key.Name, Fingerprint: s.key.Fingerprint, Algorithm: s.key.Algorithm,
		Format: f, Digest: d, Time: s.options.Time, Annotations: maps.Clone(s.options.Annotations),
	}
}

// claims are the annotations as they are signed.
func (s *Signer) claims() map[string]string {
	if s.options.Time.IsZero() {
		return s.options.Annotations
	}
	c := maps.Clone(s.options.Annotations)
	if c == nil {
		c = make(map[string]string)
	}
	c[timeClaim] = s.options.Time.UTC().Format(time.RFC3339)
	return c
}

// find looks for a signature in one format by the same key with the same claims.
func (s *Signer) find(ctx context.Context, st Store, subject ocispec.Descriptor, f Format) (*Signature, error) {
	e := examine(ctx, st, subject, []Key{s.key}, f)
	for _, sig := range e.good {
		if sig.Format == f && maps.Equal(sig.Annotations, s.options.Annotations) {
			return &sig, nil
		}
	}
	if e.unread != nil {
		return nil, fmt.Errorf("look for a signature of %s@%s: %w", st.Name(), subject.Digest, e.unread)
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
