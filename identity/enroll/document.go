package enroll

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Where the manager takes requests, and how long documents may be.
const (
	Path       = "/enroll/v1/device"
	MaxRequest = 64 << 10 // bytes
	MaxAnswer  = 4 << 20  // bytes: a trust policy with a trusted root
	maxFact    = 256      // bytes of a text in [About]
)

// Request asks for an identity, or for the next certificate of one.
type Request struct {
	CSR    []byte `json:"csr"`              // PKCS #10, DER: signed by the key of the connection; its names do not count
	Device string `json:"device,omitempty"` // id that the device should get; "": the operator chooses
	Token  string `json:"token,omitempty"`  // join token; "": none
	About  About  `json:"about,omitzero"`
	// Check asks only whether the device is still enrolled. It needs no CSR, and is answered without a grant.
	Check bool `json:"check,omitempty"`
}

// About is what a device reports about itself, for the person who decides. None of it is verified.
type About struct {
	Hostname string `json:"hostname,omitempty"`
	Vendor   string `json:"vendor,omitempty"`
	Model    string `json:"model,omitempty"`
	Serial   string `json:"serial,omitempty"`
	Agent    string `json:"agent,omitempty"` // version of the agent
	Key      string `json:"key,omitempty"`   // where the key is: "file", "tpm" or "pkcs11"
}

// Status is what the manager has decided about a key.
type Status string

// Statuses.
const (
	Pending  Status = "pending"  // an operator has to decide
	Approved Status = "approved" // [Answer.Grant] is there, but for a check
	Denied   Status = "denied"   // for good; Reason says why
	Removed  Status = "removed"  // it was enrolled, and is not any more
)

// Answer is what the manager says to a [Request].
type Answer struct {
	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`
	Device string `json:"device,omitempty"` // id of the device, if approved
	Wipe   bool   `json:"wipe,omitempty"`   // a removed device is asked to delete what it has
	After  int    `json:"retryAfterSeconds,omitempty"`
	Grant  *Grant `json:"grant,omitempty"`

	TrustBundle json.RawMessage `json:"trustBundle,omitempty"` // for an enrolled device that checks, SPIFFE's format
}

// Grant is what an approved device receives. All of it is for this device.
type Grant struct {
	Certificate string          `json:"certificate"` // X.509-SVID with intermediates, PEM
	TrustBundle json.RawMessage `json:"trustBundle"` // SPIFFE's format
	Manager     string          `json:"manager"`     // URL of the manager: reports, renewal, desired state
	Source      Source          `json:"source"`      // of desired state
	Trust       *Trusted        `json:"trust,omitempty"`
	Registries  []Login         `json:"registries,omitempty"`
	RegistryCA  string          `json:"registryCA,omitempty"` // PEM of the authorities of registries
}

// Source says where the desired state of a device is. With both, the manager names the state, and the repository has it signed.
type Source struct {
	Registry string `json:"registry,omitempty"` // repository of states, "host/path"
	Margo    bool   `json:"margo,omitempty"`    // the manager serves it, by the Margo API
}

// Login is a credential for pulling from a registry.
type Login struct {
	Host     string `json:"host"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// Trusted is the first trust policy of a device.
type Trusted struct {
	Digest   digest.Digest `json:"digest"` // of Document
	Document string        `json:"document"`
	Root     string        `json:"trustedRoot,omitempty"` // sigstore's trusted root that the document names
}

// NewRequest makes a request for a key.
func NewRequest(key crypto.Signer) (Request, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return Request{}, fmt.Errorf("make a certificate request: %w", err)
	}
	return Request{CSR: der}, nil
}

// ParseRequest reads a request that came on a connection of a key. The certificate request must be of that key, and signed by it.
func ParseRequest(data []byte, key crypto.PublicKey) (Request, error) {
	var r Request
	fail := func(why string) (Request, error) {
		return Request{}, fmt.Errorf("request of a device: %s: %w", why, fault.ErrInvalid)
	}
	if len(data) > MaxRequest {
		return Request{}, fmt.Errorf("request of a device: more than %d bytes: %w", MaxRequest, fault.ErrTooLarge)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&r); err != nil || d.More() {
		return fail("it is no JSON object of the expected form")
	}
	a := &r.About
	for _, text := range []*string{&a.Hostname, &a.Vendor, &a.Model, &a.Serial, &a.Agent, &a.Key} {
		*text = cut(*text)
	}
	if r.Check {
		return r, nil
	}
	csr, err := x509.ParseCertificateRequest(r.CSR)
	if err != nil {
		return fail("csr is no certificate request (PKCS #10, DER)")
	}
	if public, ok := csr.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key) {
		return fail("the certificate request is of another key than the connection")
	}
	if err := csr.CheckSignature(); err != nil { // only now: checking takes long with a large key, and those of connections are not
		return fail("the signature of the certificate request is not valid")
	}
	return r, nil
}

// cut shortens a text that only informs, at a whole character.
func cut(s string) string {
	if len(s) > maxFact {
		s = string(bytes.ToValidUTF8([]byte(s[:maxFact]), nil))
	}
	return s
}

// ParseAnswer reads an answer, and checks what a device relies on: a status that it knows, and in a grant a whole trust policy.
func ParseAnswer(data []byte) (Answer, error) {
	var a Answer
	fail := func(why string) (Answer, error) {
		return Answer{}, fmt.Errorf("answer of the manager: %s: %w", why, fault.ErrInvalid)
	}
	if len(data) > MaxAnswer {
		return Answer{}, fmt.Errorf("answer of the manager: more than %d bytes: %w", MaxAnswer, fault.ErrTooLarge)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return fail("it is no JSON object of the expected form")
	}
	switch a.Status {
	case Pending, Approved, Denied, Removed:
	default:
		return fail(fmt.Sprintf("status %q is not known", cut(string(a.Status))))
	}
	if a.Status != Approved && a.Grant != nil {
		return fail("a grant for a device that is not approved")
	}
	if a.Wipe && a.Status != Removed {
		return fail("it asks a device that is not removed to wipe itself")
	}
	g := a.Grant
	switch {
	case g == nil:
		return a, nil
	case g.Certificate == "" || len(g.TrustBundle) == 0 || g.Manager == "":
		return fail("a grant without certificate, trustBundle or manager")
	case g.Source == Source{}:
		return fail("a grant without a source of desired state")
	case g.Trust != nil && g.Trust.Digest != digest.FromString(g.Trust.Document):
		return Answer{}, fmt.Errorf("answer of the manager: the trust policy is not the one of its digest %s: %w", g.Trust.Digest, fault.ErrDigestMismatch)
	}
	return a, nil
}

// RetryAfter is when a device should send its request again, within bounds.
func (a Answer) RetryAfter() time.Duration {
	return min(max(time.Duration(a.After)*time.Second, minRetry), maxRetry)
}
