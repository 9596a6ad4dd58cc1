// Package keylesstest has a sigstore instance in memory, for tests of what verifies keyless signatures: a certificate
// authority, a certificate log, a transparency log and a timestamp authority, and every way in which one can be missing.
package keylesstest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/longshore-dev/longshore/signing"
)

const inTotoPayload = "application/vnd.in-toto+json"

// Instance is a sigstore instance. Its timestamp authority lives for minutes: make one for each test.
type Instance struct {
	virtual *ca.VirtualSigstore // transparency log, timestamp authority
	ca      *authority
	ctKey   *ecdsa.PrivateKey
}

// New makes an instance with keys of its own.
func New(t testing.TB) *Instance {
	t.Helper()
	return Named(t, "instance")
}

// Named is New with a certificate authority of another name.
func Named(t testing.TB, name string) *Instance {
	t.Helper()
	v, err := ca.NewVirtualSigstore()
	must(t, err)
	ctKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return &Instance{virtual: v, ca: newAuthority(t, name), ctKey: ctKey}
}

// Part is what a root can lack.
type Part int

// Parts of a root.
const (
	Authorities Part = iota + 1
	CertLogs
	Logs
	Clocks
)

// Root is the instance's trusted_root.json, without some of its parts.
func (i *Instance) Root(t testing.TB, without ...Part) []byte {
	t.Helper()
	lacks := func(p Part) bool { return slices.Contains(without, p) }
	start := time.Now().Add(-time.Hour).Truncate(time.Second)
	var authorities []root.CertificateAuthority
	if !lacks(Authorities) {
		authorities = append(authorities, &root.FulcioCertificateAuthority{
			Root: i.ca.root, Intermediates: []*x509.Certificate{i.ca.issuer}, URI: "https://fulcio.example", ValidityPeriodStart: start,
		})
	}
	certLogs := map[string]*root.TransparencyLog{}
	if !lacks(CertLogs) {
		id := logID(t, i.ctKey.Public())
		certLogs[hex.EncodeToString(id)] = &root.TransparencyLog{
			BaseURL: "https://ct.example", ID: id, ValidityPeriodStart: start, HashFunc: crypto.SHA256, PublicKey: i.ctKey.Public(), SignatureHashFunc: crypto.SHA256,
		}
	}
	logs := map[string]*root.TransparencyLog{}
	if !lacks(Logs) {
		for _, l := range i.virtual.RekorLogs() {
			id := logID(t, l.PublicKey)
			l.ID, l.BaseURL, l.ValidityPeriodStart = id, "https://rekor.example", start
			logs[hex.EncodeToString(id)] = l
		}
	}
	var clocks []root.TimestampingAuthority
	if !lacks(Clocks) {
		clocks = i.virtual.TimestampingAuthorities()
	}
	r, err := root.NewTrustedRoot(root.TrustedRootMediaType01, authorities, certLogs, clocks, logs)
	must(t, err)
	data, err := r.MarshalJSON()
	must(t, err)
	return data
}

// Flaws are what is wrong with a signature. The zero value is a good one, with all that sigstore's public instance gives.
type Flaws struct {
	NoSCT    bool          // the certificate is in no certificate log
	NoLog    bool          // the signature is in no transparency log
	NoStamp  bool          // no RFC 3161 timestamp
	NoTime   bool          // the log does not say when, as Rekor 2 does not
	Late     time.Duration // it was logged so long after the certificate was issued
	Foreign  bool          // the certificate is by an authority of the same name, and of nobody's root
	OtherSCT bool          // the certificate log is none of the root
}

// Keyless signs statements as a subject.
func (i *Instance) Keyless(t testing.TB, issuer, subject string, f Flaws) func(context.Context, []byte) ([]byte, error) {
	return func(_ context.Context, statement []byte) ([]byte, error) {
		return i.Bundle(t, issuer, subject, statement, f), nil
	}
}

// Bundle signs a statement in the name of a subject.
func (i *Instance) Bundle(t testing.TB, issuer, subject string, statement []byte, f Flaws) []byte {
	t.Helper()
	leaf, key := i.leaf(t, issuer, subject, f)
	sig := sign(t, key, dsse.PAE(inTotoPayload, statement))
	b := &protobundle.Bundle{
		MediaType: signing.MediaTypeBundle,
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: leaf.Raw}},
		},
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: statement, PayloadType: inTotoPayload, Signatures: []*protodsse.Signature{{Sig: sig}},
		}},
	}
	if !f.NoLog {
		b.VerificationMaterial.TlogEntries = []*protorekor.TransparencyLogEntry{i.entry(t, leaf, &dsse.Envelope{
			PayloadType: inTotoPayload, Payload: base64.StdEncoding.EncodeToString(statement),
			Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(sig)}},
		}, sig, f)}
	}
	if !f.NoStamp {
		b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: i.stamp(t, sig)}},
		}
	}
	data, err := protojson.Marshal(b)
	must(t, err)
	var compact bytes.Buffer
	must(t, json.Compact(&compact, data))
	return compact.Bytes()
}

// Legacy signs a payload in cosign's older format and returns the annotations of its layer, signature included.
func (i *Instance) Legacy(t testing.TB, issuer, subject string, payload []byte, f Flaws) map[string]string {
	t.Helper()
	leaf, key := i.leaf(t, issuer, subject, f)
	sig := sign(t, key, payload)
	out := map[string]string{
		"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig),
		"dev.sigstore.cosign/certificate":    encodePEM(leaf),
		"dev.sigstore.cosign/chain":          encodePEM(i.ca.issuer, i.ca.root),
	}
	if !f.NoLog {
		out["dev.sigstore.cosign/bundle"] = i.promise(t, leaf, payload, sig, f)
	}
	if !f.NoStamp {
		stamp, err := json.Marshal(map[string][]byte{"SignedRFC3161Timestamp": i.stamp(t, sig)})
		must(t, err)
		out["dev.sigstore.cosign/rfc3161timestamp"] = string(stamp)
	}
	return maps.Clone(out)
}

func (i *Instance) leaf(t testing.TB, issuer, subject string, f Flaws) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	by, log := i.ca, i.ctKey
	var err error
	if f.Foreign {
		by = newAuthority(t, "instance")
	}
	if f.OtherSCT {
		log, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
	}
	if f.NoSCT {
		log = nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return by.issue(t, issuer, subject, key.Public(), log), key
}

func (i *Instance) entry(t testing.TB, leaf *x509.Certificate, envelope *dsse.Envelope, sig []byte, f Flaws) *protorekor.TransparencyLogEntry {
	t.Helper()
	e, err := i.virtual.GenerateTlogEntry(leaf, envelope, sig, time.Now().Add(f.Late).Unix(), true)
	must(t, err)
	entry := e.TransparencyLogEntry()
	entry.KindVersion = &protorekor.KindVersion{Kind: "intoto", Version: "0.0.2"}
	if f.NoTime {
		entry.InclusionPromise, entry.IntegratedTime = nil, 0
		return entry
	}
	set, err := i.virtual.RekorSignPayload(tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(entry.GetCanonicalizedBody()), IntegratedTime: entry.GetIntegratedTime(),
		LogIndex: entry.GetLogIndex(), LogID: hex.EncodeToString(entry.GetLogId().GetKeyId()),
	})
	must(t, err)
	entry.InclusionPromise = &protorekor.InclusionPromise{SignedEntryTimestamp: set}
	return entry
}

func (i *Instance) stamp(t testing.TB, sig []byte) []byte {
	t.Helper()
	data, err := i.virtual.TimestampResponse(sig)
	must(t, err)
	return data
}

func sign(t testing.TB, key *ecdsa.PrivateKey, message []byte) []byte {
	t.Helper()
	hash := sha256.Sum256(message)
	sig, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
	must(t, err)
	return sig
}

func encodePEM(all ...*x509.Certificate) string {
	var out []byte
	for _, c := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return string(out)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Authority is the PEM of the certificate authority: what issues, then its root.
func (i *Instance) Authority() []byte { return []byte(encodePEM(i.ca.issuer, i.ca.root)) }

// Certificate lets the instance's authority certify a key of one's own, in no log, and returns PEM: the certificate, and what
// vouches for it.
func (i *Instance) Certificate(t testing.TB, subject string, pub crypto.PublicKey) (leaf, chain []byte) {
	t.Helper()
	return []byte(encodePEM(i.ca.issue(t, "https://nobody.example", subject, pub, nil))), i.Authority()
}
