package signing_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

const reportType = "https://longshore.dev/current-state/v1"

func deviceKey(t testing.TB, name string) (*ecdsa.PrivateKey, signing.Key) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.NewKey(name, private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return private, key
}

func statementAbout(d digest.Digest) []byte {
	return []byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a","digest":{"sha256":"` + d.Encoded() + `"}}],"predicateType":"` + reportType + `","predicate":{"device":"press-07"}}`)
}

func TestSignStatement(t *testing.T) {
	private, key := deviceKey(t, "press-07")
	_, other := deviceKey(t, "press-08")
	said := statementAbout(digest.FromString("state"))
	bundle, err := signing.SignStatement(said, private)
	if err != nil {
		t.Fatal(err)
	}
	got, by, err := signing.ReadStatement(t.Context(), bundle, []signing.Key{other, key})
	if err != nil || string(got) != string(said) || by.Name != "press-07" {
		t.Errorf("ReadStatement = %s, %s, %v", got, by.Name, err)
	}
	if got, _, err := signing.ReadStatement(t.Context(), bundle, []signing.Key{other}); !errors.Is(err, fault.ErrBadSignature) || got != nil {
		t.Errorf("with the key of another device: %s, %v", got, err)
	}
	if got, _, err := signing.ReadStatement(t.Context(), bundle, nil); !errors.Is(err, fault.ErrBadSignature) || got != nil {
		t.Errorf("without a key: %s, %v", got, err)
	}
	forged := base64.StdEncoding.EncodeToString([]byte(strings.Replace(string(said), "press-07", "press-09", 1)))
	altered := strings.Replace(string(bundle), base64.StdEncoding.EncodeToString(said), forged, 1)
	if got, _, err := signing.ReadStatement(t.Context(), []byte(altered), []signing.Key{key}); altered == string(bundle) || !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("an altered one: %s, %v", got, err)
	}
	for _, bad := range []string{"", "{}", "[]", string(bundle[:len(bundle)-1])} {
		if got, _, err := signing.ReadStatement(t.Context(), []byte(bad), []signing.Key{key}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ReadStatement(%q) = %s, %v", bad, got, err)
		}
	}
}

// Real cosign verifies what a device has signed.
func TestCosignVerifiesAStatement(t *testing.T) {
	private, _ := deviceKey(t, "press-07")
	state := []byte("the manifest of a state")
	bundle, err := signing.SignStatement(statementAbout(digest.FromBytes(state)), private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"device.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "report.json": bundle, "state.json": state, "other.json": []byte("another"),
		"root.json": []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, cosign := range []string{"cosign2", "cosign3"} {
		t.Run(cosign, func(t *testing.T) {
			verify := func(file string) (string, error) {
				args := []string{"verify-blob-attestation", "--key", filepath.Join(dir, "device.pub"), "--bundle", filepath.Join(dir, "report.json"), "--type", reportType, "--insecure-ignore-tlog=true"}
				if cosign == "cosign2" {
					args = append(args, "--new-bundle-format", "--trusted-root", filepath.Join(dir, "root.json")) // it asks for one, also for a key
				}
				out, err := exec.CommandContext(t.Context(), testenv.Program(t, cosign), append(args, filepath.Join(dir, file))...).CombinedOutput()
				return string(out), err
			}
			if out, err := verify("state.json"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := verify("other.json"); err == nil {
				t.Errorf("it passes for another state: %s", out)
			}
		})
	}
}

// What arrives may be anything; what passes is what the key has signed.
func FuzzReadStatement(f *testing.F) {
	private, key := deviceKey(f, "press-07")
	bundle, err := signing.SignStatement(statementAbout(digest.FromString("state")), private)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bundle)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{}},"dsseEnvelope":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, _, err := signing.ReadStatement(context.Background(), data, []signing.Key{key}); err == nil && (string(got) != string(statementAbout(digest.FromString("state"))) || !json.Valid(got)) {
			t.Errorf("ReadStatement(%q) = %q", data, got)
		}
	})
}
