package signing

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

func TestKeys(t *testing.T) {
	private, public := pair()
	for _, c := range []struct{ name, data, want string }{
		{"private", string(private), "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n"},
		{"public", string(public), "-----BEGIN PUBLIC KEY-----\n"},
	} {
		if !strings.HasPrefix(c.data, c.want) {
			t.Errorf("%s key begins with %.60q, want %q", c.name, c.data, c.want)
		}
	}
	s := newSigner(t, SignOptions{})
	if k := releaseKey(t); k.Fingerprint != s.Key().Fingerprint || k.Algorithm != "ECDSA P-256" || string(s.PublicPEM()) != string(public) {
		t.Errorf("the halves do not belong together: %+v, %+v", k, s.Key())
	}
	if s.Key().Name != s.Key().Fingerprint.String() {
		t.Errorf("name of a nameless key = %q", s.Key().Name)
	}
}

func TestNewSignerRefuses(t *testing.T) {
	private, public := pair()
	cases := []struct {
		name     string
		key      string
		password string
		options  SignOptions
		want     error
	}{
		{"wrong password", string(private), "wrong", SignOptions{}, fault.ErrUnauthenticated},
		{"empty", "", testPassword, SignOptions{}, fault.ErrInvalid},
		{"not PEM", "secret", testPassword, SignOptions{}, fault.ErrInvalid},
		{"public key", string(public), testPassword, SignOptions{}, fault.ErrInvalid},
		{"too large", strings.Repeat("x", MaxKeyBytes+1), testPassword, SignOptions{}, fault.ErrTooLarge},
		{"truncated", string(private[:len(private)/2]), testPassword, SignOptions{}, fault.ErrInvalid},
		{"damaged", "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n", testPassword, SignOptions{}, fault.ErrInvalid},
		{"plain PKCS#8", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", testPassword, SignOptions{}, fault.ErrUnsupported},
		{"unknown format", string(private), testPassword, SignOptions{Format: "pgp"}, fault.ErrInvalid},
		{"reserved claim", string(private), testPassword, SignOptions{Annotations: map[string]string{timeClaim: "x"}}, fault.ErrInvalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewSigner([]byte(c.key), []byte(c.password), c.options)
			if !errors.Is(err, c.want) {
				t.Fatalf("NewSigner = %v, want %v", err, c.want)
			}
			if strings.Contains(err.Error(), testPassword) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

func TestParsePublicKeyRefuses(t *testing.T) {
	private, public := pair()
	cases := []struct{ name, data string }{
		{"empty", ""},
		{"text", "ssh-ed25519 AAAA"},
		{"private key", string(private)},
		{"two keys", string(public) + string(public)},
		{"text after", string(public) + "and more"},
		{"truncated", string(public[:len(public)/2])},
		{"certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
		{"garbage inside", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"},
		{"RSA 1024", string(readFile(t, "testdata/rsa1024.pub"))},
		{"too large", strings.Repeat("x", MaxKeyBytes+1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if k, err := ParsePublicKey("k", []byte(c.data)); err == nil {
				t.Errorf("ParsePublicKey = %+v, want an error", k)
			}
		})
	}
}

// Without Once every Sign writes one more, with it a signature that is there is found.
func TestSignOnce(t *testing.T) {
	for _, f := range []Format{FormatBundle, FormatLegacy, FormatBoth} {
		t.Run(string(f), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
			first := sign(t, newSigner(t, SignOptions{Format: f, Once: true, Time: now}), st, subject)
			before := len(st.Content)
			again := sign(t, newSigner(t, SignOptions{Format: f, Once: true, Time: now.Add(time.Hour)}), st, subject)
			if len(st.Content) != before {
				t.Errorf("the second Sign wrote %d more", len(st.Content)-before)
			}
			if len(again) != len(first) || again[0].Digest != first[0].Digest || !again[0].Time.Equal(now) {
				t.Errorf("Sign again = %+v, want %+v", again, first)
			}
			sign(t, newSigner(t, SignOptions{Format: f, Once: true, Annotations: map[string]string{"a": "b"}}), st, subject)
			if len(st.Content) == before {
				t.Error("a Sign with other claims wrote nothing")
			}
			st.Fail = func(op, _ string) error {
				if op == "manifest" {
					return fault.ErrTemporary
				}
				return nil
			}
			if _, err := newSigner(t, SignOptions{Format: f, Once: true}).Sign(t.Context(), st, subject); !fault.Retryable(err) {
				t.Errorf("Sign that cannot look = %v", err)
			}
		})
	}
}

// A signer that is overwritten by another between its read and its write comes again, and loses neither.
func TestLegacyRace(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	st.OnPush = func(string) {
		st.OnPush = nil
		sign(t, otherSigner(t, SignOptions{Format: FormatLegacy}), st, subject)
		// The other's write comes first and is then overwritten by ours: put it back as a second overwrite would.
		theirs := st.Tags[LegacyTag(subject.Digest)]
		st.OnPush = func(string) {
			st.OnPush = nil
			st.Tags[LegacyTag(subject.Digest)] = theirs
		}
	}
	sign(t, newSigner(t, SignOptions{Format: FormatLegacy}), st, subject)
	if _, err := Verify(t.Context(), st, subject, []Trustee{releaseKey(t)}); err != nil {
		t.Error(err)
	}
}

// What cosign and others want to see in a referrer.
func TestReferrerShape(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	made := sign(t, newSigner(t, SignOptions{}), st, subject)
	var m ocispec.Manifest
	if err := json.Unmarshal(st.Content[made[0].Digest], &m); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType != MediaTypeBundle || len(m.Layers) != 1 || m.Layers[0].MediaType != MediaTypeBundle ||
		m.Subject == nil || m.Subject.Digest != subject.Digest || m.Config.MediaType != ocispec.MediaTypeEmptyJSON {
		t.Errorf("referrer = %s", st.Content[made[0].Digest])
	}
	if _, ok := st.Content[digest.FromString("{}")]; !ok {
		t.Error("the empty config was not pushed")
	}
	var b struct {
		MediaType    string
		DSSEEnvelope struct{ Payload []byte }
	}
	if err := json.Unmarshal(st.Content[m.Layers[0].Digest], &b); err != nil {
		t.Fatal(err)
	}
	want := `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` + subject.Digest.Encoded() +
		`"}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`
	if b.MediaType != MediaTypeBundle || string(b.DSSEEnvelope.Payload) != want {
		t.Errorf("statement = %s, want %s", b.DSSEEnvelope.Payload, want)
	}
}
