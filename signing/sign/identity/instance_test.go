package identity_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/sign/identity"
	"github.com/longshore-dev/longshore/testenv"
)

const person = "release@acme.example"

// push puts a small artifact into a repository.
func push(t *testing.T, r *registry.Repository, text string) ocispec.Descriptor {
	t.Helper()
	data := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"text/plain",` +
		`"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},` +
		`"layers":[{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2}],` +
		`"annotations":{"text":"` + text + `"}}`)
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := errors.Join(
		r.PushBlob(t.Context(), ocispec.DescriptorEmptyJSON, []byte("{}")), r.PushManifest(t.Context(), d, data, ""),
	); err != nil {
		t.Fatal(err)
	}
	return d
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// cosign3 runs the real cosign; a proxy that answers nobody keeps it from anything but this machine.
func cosign3(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Program(t, "cosign3"), args...)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+dir, "TUF_ROOT="+filepath.Join(dir, "tuf"),
		"HTTPS_PROXY=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func identityOf(t *testing.T, s *testenv.Sigstore, email string) *keyless.Identity {
	t.Helper()
	root, err := keyless.ParseRoot(readFile(t, s.TrustedRoot))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := keyless.Exact(s.Issuer)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := keyless.Exact(email)
	if err != nil {
		t.Fatal(err)
	}
	i, err := keyless.NewIdentity(keyless.IdentityOptions{Name: "person", Issuer: issuer, Subject: subject}, root)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func token(t *testing.T, s *testenv.Sigstore, email string) identity.Token {
	t.Helper()
	raw, err := s.Token(email)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := identity.ParseToken(raw, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// Signatures against real Fulcio, Rekor 2 and a timestamp authority, ours and cosign's, each verified by the other; ours
// also after every server of the instance is gone.
func TestRealInstance(t *testing.T) {
	s := testenv.StartSigstore(t)
	server := testenv.Registry(t, testenv.Referrers)
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r, err := client.OpenName(t.Context(), server.Reference("plant/web"))
	if err != nil {
		t.Fatal(err)
	}
	services, err := identity.ParseServices(readFile(t, s.SigningConfig), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer web.CloseIdleConnections()
	seal, err := identity.New(identity.Options{Services: services, Token: token(t, s, person), Client: web})
	if err != nil {
		t.Fatal(err)
	}
	identity := identityOf(t, s, person)
	signer, err := sign.NewKeylessSigner(seal, identity, sign.Options{Name: person, Annotations: map[string]string{"approved": "yes"}, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, strange := push(t, r, "ours"), push(t, r, "theirs"), push(t, r, "strange")
	for range 2 {
		if made, err := signer.Sign(t.Context(), r, ours); err != nil || len(made) != 1 {
			t.Fatalf("sign: %d signatures, %v", len(made), err)
		}
	}
	if listed, err := r.Referrers(t.Context(), ours); err != nil || len(listed) != 1 {
		t.Errorf("%d referrers, %v; want one", len(listed), err)
	}
	for target, email := range map[digest.Digest]string{theirs.Digest: person, strange.Digest: "stranger@acme.example"} {
		raw, err := s.Token(email)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "token") // cosign takes a long token for the name of a file, and prints it
		if err := os.WriteFile(file, []byte(raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := cosign3(t, "sign", "--yes", "--signing-config", s.SigningConfig, "--trusted-root", s.TrustedRoot, "--identity-token", file,
			r.Name()+"@"+target.String()); err != nil {
			t.Fatalf("cosign sign: %v\n%s", err, out)
		}
	}
	verify := func(email string) []string {
		return []string{
			"verify", "--trusted-root", s.TrustedRoot, "--certificate-identity", email, "--certificate-oidc-issuer", s.Issuer, "-a", "approved=yes",
			r.Name() + "@" + ours.Digest.String(),
		}
	}
	if out, err := cosign3(t, verify(person)...); err != nil {
		t.Errorf("cosign does not take our signature: %v\n%s", err, out)
	}
	if out, err := cosign3(t, verify("other@acme.example")...); err == nil {
		t.Errorf("cosign takes our signature for somebody else's:\n%s", out)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]ocispec.Descriptor{"ours": ours, "cosign's": theirs} {
		got, err := signing.Verify(t.Context(), r, target, []signing.Verifier{identity})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if v := got[0]; v.Identity != person || v.Issuer != s.Issuer || v.Proven.IsZero() || len(v.Checked) < 4 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if _, err := signing.Verify(t.Context(), r, strange, []signing.Verifier{identity}); !errors.Is(err, fault.ErrBadSignature) || !strings.Contains(err.Error(), "stranger@") {
		t.Errorf("somebody else's: %v, want %v with the name", err, fault.ErrBadSignature)
	}
}

// What a service refuses is told with its words, and never with the token.
func TestRealInstanceRefuses(t *testing.T) {
	s := testenv.StartSigstore(t)
	services, err := identity.ParseServices(readFile(t, s.SigningConfig), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer web.CloseIdleConnections()
	raw, err := s.Token(person)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := identity.ParseToken(raw[:len(raw)-8]+"AAAAAAAA", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	gone := services
	gone.Fulcio = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		o    identity.Options
		want error
	}{
		"forged token": {identity.Options{Services: services, Token: forged, Client: web}, fault.ErrDenied},
		"no server":    {identity.Options{Services: gone, Token: token(t, s, person), Client: web}, fault.ErrTemporary},
	} {
		seal, err := identity.New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		_, err = seal(t.Context(), []byte(`{}`))
		if !errors.Is(err, c.want) && !(name == "forged token" && errors.Is(err, fault.ErrUnauthenticated)) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), raw[:40]) {
			t.Errorf("%s: the error has the token", name)
		}
	}
}

// A job of GitHub Actions signs as itself, with nothing but its environment.
func TestAmbient(t *testing.T) {
	s := testenv.StartSigstore(t)
	web := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	defer web.CloseIdleConnections()
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_URL", s.ActionsURL)
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", s.ActionsToken)
	tok, found, err := identity.Ambient(t.Context(), web, time.Now())
	if err != nil || !found || tok.Subject() != "job@acme.example" || tok.Issuer() != s.Issuer {
		t.Errorf("Ambient = %s by %s, %v, %v", tok.Subject(), tok.Issuer(), found, err)
	}
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "wrong")
	if _, _, err := identity.Ambient(t.Context(), web, time.Now()); !errors.Is(err, fault.ErrDenied) || fault.Hint(err) == "" {
		t.Errorf("Ambient with a wrong secret: %v, want %v with a hint", err, fault.ErrDenied)
	}
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "")
	if _, found, err := identity.Ambient(t.Context(), web, time.Now()); found || err != nil {
		t.Errorf("outside of a job: %v, %v", found, err)
	}
}
