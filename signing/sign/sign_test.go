package sign_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

func TestKeys(t *testing.T) {
	private, public := signingtest.Pair()
	for _, c := range []struct{ name, data, want string }{
		{"private", string(private), "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n"},
		{"public", string(public), "-----BEGIN PUBLIC KEY-----\n"},
	} {
		if !strings.HasPrefix(c.data, c.want) {
			t.Errorf("%s key begins with %.60q, want %q", c.name, c.data, c.want)
		}
	}
	s := signingtest.NewSigner(t, sign.Options{})
	if k := signingtest.ReleaseKey(t); k.Fingerprint != s.Key().Fingerprint || k.Algorithm != "ECDSA P-256" || string(s.PublicPEM()) != string(public) {
		t.Errorf("the halves do not belong together: %+v, %+v", k, s.Key())
	}
	if s.Key().Name != s.Key().Fingerprint.String() {
		t.Errorf("name of a nameless key = %q", s.Key().Name)
	}
}

func TestNewSignerRefuses(t *testing.T) {
	private, public := signingtest.Pair()
	cases := []struct {
		name     string
		key      string
		password string
		options  sign.Options
		want     error
	}{
		{"wrong password", string(private), "wrong", sign.Options{}, fault.ErrUnauthenticated},
		{"empty", "", signingtest.Password, sign.Options{}, fault.ErrInvalid},
		{"not PEM", "secret", signingtest.Password, sign.Options{}, fault.ErrInvalid},
		{"public key", string(public), signingtest.Password, sign.Options{}, fault.ErrInvalid},
		{"too large", strings.Repeat("x", signing.MaxKeyBytes+1), signingtest.Password, sign.Options{}, fault.ErrTooLarge},
		{"truncated", string(private[:len(private)/2]), signingtest.Password, sign.Options{}, fault.ErrInvalid},
		{"damaged", "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n", signingtest.Password, sign.Options{}, fault.ErrInvalid},
		{"plain PKCS#8", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", signingtest.Password, sign.Options{}, fault.ErrUnsupported},
		{"unknown format", string(private), signingtest.Password, sign.Options{Format: "pgp"}, fault.ErrInvalid},
		{"reserved claim", string(private), signingtest.Password, sign.Options{Annotations: map[string]string{signing.AnnotationTime: "x"}}, fault.ErrInvalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := sign.NewSigner([]byte(c.key), []byte(c.password), c.options)
			if !errors.Is(err, c.want) {
				t.Fatalf("NewSigner = %v, want %v", err, c.want)
			}
			if strings.Contains(err.Error(), signingtest.Password) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

// Without Once every Sign writes one more, with it a signature that is there is found.
func TestSignOnce(t *testing.T) {
	for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy, signing.FormatBoth} {
		t.Run(string(f), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
			first := signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: f, Once: true, Time: now}), st, subject)
			before := len(st.Content)
			again := signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: f, Once: true, Time: now.Add(time.Hour)}), st, subject)
			if len(st.Content) != before {
				t.Errorf("the second Sign wrote %d more", len(st.Content)-before)
			}
			if len(again) != len(first) || again[0].Digest != first[0].Digest || !again[0].Time.Equal(now) {
				t.Errorf("Sign again = %+v, want %+v", again, first)
			}
			signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: f, Once: true, Annotations: map[string]string{"a": "b"}}), st, subject)
			if len(st.Content) == before {
				t.Error("a Sign with other claims wrote nothing")
			}
			st.StripData(t, subject)
			st.Fail = func(op, _ string) error {
				if op == "manifest" {
					return fault.ErrTemporary
				}
				return nil
			}
			if _, err := signingtest.NewSigner(t, sign.Options{Format: f, Once: true}).Sign(t.Context(), st, subject); !fault.Retryable(err) {
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
		signingtest.Sign(t, signingtest.OtherSigner(t, sign.Options{Format: signing.FormatLegacy}), st, subject)
		// The other's write comes first and is then overwritten by ours: put it back as a second overwrite would.
		theirs := st.Tags[signing.LegacyTag(subject.Digest)]
		st.OnPush = func(string) {
			st.OnPush = nil
			st.Tags[signing.LegacyTag(subject.Digest)] = theirs
		}
	}
	signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{Format: signing.FormatLegacy}), st, subject)
	if _, err := signing.Verify(t.Context(), st, subject, []signing.Verifier{signingtest.ReleaseKey(t)}); err != nil {
		t.Error(err)
	}
}

// What cosign and others want to see in a referrer.
func TestReferrerShape(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "hello")
	made := signingtest.Sign(t, signingtest.NewSigner(t, sign.Options{}), st, subject)
	var m ocispec.Manifest
	if err := json.Unmarshal(st.Content[made[0].Digest], &m); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType != signing.MediaTypeBundle || len(m.Layers) != 1 || m.Layers[0].MediaType != signing.MediaTypeBundle ||
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
	if b.MediaType != signing.MediaTypeBundle || string(b.DSSEEnvelope.Payload) != want {
		t.Errorf("statement = %s, want %s", b.DSSEEnvelope.Payload, want)
	}
}
