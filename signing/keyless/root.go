package keyless

import (
	"cmp"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	prototrustroot "github.com/sigstore/protobuf-specs/gen/pb-go/trustroot/v1"
	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxRootBytes bounds a trusted root. That of sigstore's public instance has 7 KiB.
const MaxRootBytes = 1 << 20

// Root has the trusted certificate authorities, logs and timestamp authorities: sigstore's trusted_root.json.
// It is read only, and safe for concurrent use.
type Root struct {
	material root.TrustedMaterial
	digest   digest.Digest
	dated    time.Time
	members  []Member
}

// Kinds of members of a root.
const (
	MemberAuthority = "certificate authority"
	MemberCertLog   = "certificate log"
	MemberLog       = "transparency log"
	MemberClock     = "timestamp authority"
)

// Member is one service that a root trusts.
type Member struct {
	Kind string // one of the constants above
	URI  string // its address, maybe a former one; "" if the root has none
	Name string // the subject of an authority's certificate, the id of a log, shortened
	// From and Until are its validity. A zero Until has no end.
	From, Until time.Time
}

// ParseRoot reads a trusted_root.json. None of its members is required: without timestamp authorities the root is valid, but
// signatures that need one fail.
func ParseRoot(data []byte) (*Root, error) {
	if len(data) > MaxRootBytes {
		return nil, fmt.Errorf("trusted root: %w: more than %d bytes", fault.ErrTooLarge, MaxRootBytes)
	}
	document, err := root.NewTrustedRootProtobuf(data)
	if err != nil {
		err = fmt.Errorf("trusted root: %w: %w", fault.ErrInvalid, err)
		return nil, fault.WithHint(err, "give the trusted_root.json that cosign trusted-root create writes, or the one below root/ of a sigstore instance's TUF repository")
	}
	material, err := root.NewTrustedRootFromProtobuf(document)
	if err != nil {
		return nil, fmt.Errorf("trusted root: %w: %w", fault.ErrInvalid, err)
	}
	r := &Root{material: material, digest: digest.FromBytes(data), members: members(document)}
	if len(r.members) == 0 {
		return nil, fmt.Errorf("trusted root: %w: it names no authority and no log", fault.ErrInvalid)
	}
	for _, m := range r.members {
		if m.From.After(r.dated) {
			r.dated = m.From
		}
	}
	return r, nil
}

// Dated is the start of the newest member; the root cannot have services that started later. It is zero if no member has a
// start.
func (r *Root) Dated() time.Time { return r.dated }

// Digest is the digest of the document.
func (r *Root) Digest() digest.Digest { return r.digest }

// Members lists the members of the root, in the order of kinds above, oldest first.
func (r *Root) Members() []Member { return slices.Clone(r.members) }

// aged describes the root in an error.
func (r *Root) aged() string {
	if r.dated.IsZero() {
		return "the trusted root"
	}
	return "the trusted root dated " + r.dated.UTC().Format(time.DateOnly)
}

func members(document *prototrustroot.TrustedRoot) []Member {
	var all []Member
	authorities := func(kind string, list []*prototrustroot.CertificateAuthority) {
		for _, a := range list {
			m := Member{Kind: kind, URI: a.GetUri(), Name: chainName(a.GetCertChain())}
			m.From, m.Until = window(a.GetValidFor())
			all = append(all, m)
		}
	}
	logs := func(kind string, list []*prototrustroot.TransparencyLogInstance) {
		for _, l := range list {
			m := Member{Kind: kind, URI: l.GetBaseUrl(), Name: shortID(l.GetLogId().GetKeyId())}
			m.From, m.Until = window(l.GetPublicKey().GetValidFor())
			all = append(all, m)
		}
	}
	authorities(MemberAuthority, document.GetCertificateAuthorities())
	logs(MemberCertLog, document.GetCtlogs())
	logs(MemberLog, document.GetTlogs())
	authorities(MemberClock, document.GetTimestampAuthorities())
	slices.SortStableFunc(all, func(a, b Member) int {
		return cmp.Or(cmp.Compare(kindOrder(a.Kind), kindOrder(b.Kind)), a.From.Compare(b.From))
	})
	return all
}

func kindOrder(kind string) int {
	return slices.Index([]string{MemberAuthority, MemberCertLog, MemberLog, MemberClock}, kind)
}

func window(w *protocommon.TimeRange) (from, until time.Time) {
	if w.GetStart() != nil {
		from = w.GetStart().AsTime()
	}
	if w.GetEnd() != nil {
		until = w.GetEnd().AsTime()
	}
	return from, until
}

// chainName is the subject of the certificate that signs certificates or timestamps: the first of the chain.
func chainName(chain *protocommon.X509CertificateChain) string {
	for _, raw := range chain.GetCertificates() {
		if c, err := x509.ParseCertificate(raw.GetRawBytes()); err == nil {
			return c.Subject.String()
		}
	}
	return ""
}

const shortIDBytes = 6

// shortID is a short name of a log for messages.
func shortID(id []byte) string {
	if len(id) > shortIDBytes {
		return hex.EncodeToString(id[:shortIDBytes]) + "…"
	}
	return hex.EncodeToString(id)
}
