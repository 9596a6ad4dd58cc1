package keylesstest

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
	"github.com/sigstore/rekor/pkg/types"
	"github.com/sigstore/rekor/pkg/types/hashedrekord"
	_ "github.com/sigstore/rekor/pkg/types/hashedrekord/v0.0.1" // the kind of entry that cosign makes of a payload
	"github.com/sigstore/sigstore-go/pkg/tlog"
)

// LeafLifetime is how long a certificate of an identity is valid, from the minute before it is issued.
const LeafLifetime = 10 * time.Minute

// authority is a root and what it lets issue.
type authority struct {
	root, issuer *x509.Certificate
	key          *ecdsa.PrivateKey // of issuer
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := func(cn string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: serial(t), Subject: pkix.Name{CommonName: cn, Organization: []string{name}},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
		}
	}
	top := certify(t, template(name+" root"), nil, rootKey.Public(), rootKey)
	issuing := template(name + " issuer")
	issuing.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	return &authority{root: top, issuer: certify(t, issuing, top, key.Public(), rootKey), key: key}
}

// issue makes the certificate of an identity, with the word of a certificate log in it unless that is nil.
func (a *authority) issue(t testing.TB, issuer, subject string, pub crypto.PublicKey, log *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := asn1.MarshalWithParams(issuer, "utf8")
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: serial(t), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(LeafLifetime - time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte(issuer)},
			{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: der},
		},
	}
	if strings.Contains(subject, "://") {
		u, err := url.Parse(subject)
		must(t, err)
		template.URIs = []*url.URL{u}
	} else {
		template.EmailAddresses = []string{subject}
	}
	leaf := certify(t, template, a.issuer, pub, a.key)
	if log == nil {
		return leaf
	}
	sct := SCT(t, log, a.issuer.RawSubjectPublicKeyInfo, leaf.RawTBSCertificate)
	list, err := tls.Marshal(ctx509.SignedCertificateTimestampList{SCTList: []ctx509.SerializedSCT{{Val: sct}}})
	must(t, err)
	value, err := asn1.Marshal(list)
	must(t, err)
	template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier(ctx509.OIDExtensionCTSCT), Value: value})
	return certify(t, template, a.issuer, pub, a.key)
}

// SCT is what a certificate log says of the certificate that is about to be issued: encoded as in RFC 6962, section 3.2.
// The issuer's public key and the certificate to be signed are DER.
func SCT(t testing.TB, log *ecdsa.PrivateKey, issuer, tbs []byte) []byte {
	t.Helper()
	sct := ct.SignedCertificateTimestamp{
		SCTVersion: ct.V1, LogID: ct.LogID{KeyID: [sha256.Size]byte(logID(t, log.Public()))}, Timestamp: uint64(time.Now().UnixMilli()),
	}
	input, err := ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: ct.MerkleTreeLeaf{
		Version: ct.V1, LeafType: ct.TimestampedEntryLeafType,
		TimestampedEntry: &ct.TimestampedEntry{
			Timestamp: sct.Timestamp, EntryType: ct.PrecertLogEntryType,
			PrecertEntry: &ct.PreCert{IssuerKeyHash: sha256.Sum256(issuer), TBSCertificate: tbs},
		},
	}})
	must(t, err)
	signature, err := tls.CreateSignature(*log, tls.SHA256, input)
	must(t, err)
	sct.Signature = ct.DigitallySigned(signature)
	data, err := tls.Marshal(sct)
	must(t, err)
	return data
}

// promise is what cosign keeps of a log entry in its older format.
func (i *Instance) promise(t testing.TB, leaf *x509.Certificate, payload, sig []byte, f Flaws) string {
	t.Helper()
	hash := sha256.Sum256(payload)
	proposed, err := types.NewProposedEntry(t.Context(), hashedrekord.KIND, hashedrekord.New().DefaultVersion(), types.ArtifactProperties{
		ArtifactHash: hex.EncodeToString(hash[:]), SignatureBytes: sig, PublicKeyBytes: [][]byte{[]byte(encodePEM(leaf))}, PKIFormat: "x509",
	})
	must(t, err)
	entry, err := types.CreateVersionedEntry(proposed)
	must(t, err)
	body, err := types.CanonicalizeEntry(t.Context(), entry)
	must(t, err)
	id, err := i.virtual.RekorLogID()
	must(t, err)
	said := tlog.RekorPayload{Body: base64.StdEncoding.EncodeToString(body), IntegratedTime: time.Now().Add(f.Late).Unix(), LogIndex: 7, LogID: id}
	set, err := i.virtual.RekorSignPayload(said)
	must(t, err)
	data, err := json.Marshal(map[string]any{"SignedEntryTimestamp": set, "Payload": said})
	must(t, err)
	return string(data)
}

func certify(t testing.TB, template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	parent = cmp.Or(parent, template)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	must(t, err)
	c, err := x509.ParseCertificate(der)
	must(t, err)
	return c
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	must(t, err)
	return n
}

func logID(t testing.TB, pub crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	must(t, err)
	sum := sha256.Sum256(der)
	return sum[:]
}
