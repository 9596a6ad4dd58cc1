package keyless_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

// push puts a small artifact into a repository.
func push(t *testing.T, r *registry.Repository) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "text/plain",
		Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{ocispec.DescriptorEmptyJSON},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := errors.Join(
		r.PushBlob(t.Context(), ocispec.DescriptorEmptyJSON, []byte("{}")), r.PushManifest(t.Context(), d, data, ""),
	); err != nil {
		t.Fatal(err)
	}
	return d
}

// What the real cosigns sign with a key and a certificate of one's own authority.
func TestCosignSignsWithCertificate(t *testing.T) {
	private, public, err := sign.GenerateKey([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := cryptoutils.UnmarshalPEMToPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	instance := keylesstest.New(t)
	leaf, chain := instance.Certificate(t, person, pub)
	dir := t.TempDir()
	for name, data := range map[string][]byte{"k.key": private, "leaf.pem": leaf, "chain.pem": chain} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	authority := newAuthority(t, keyless.AuthorityOptions{Certificates: instance.Authority()})
	stranger := newAuthority(t, keyless.AuthorityOptions{Certificates: keylesstest.New(t).Authority()})
	for name, flags := range map[string][]string{
		"cosign2": {"--tlog-upload=false"},
		"cosign3": {"--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format=false"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := client.OpenName(t.Context(), testenv.Registry(t, testenv.Referrers).Reference("plant/web"))
			if err != nil {
				t.Fatal(err)
			}
			target := push(t, r)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, testenv.Program(t, name), append(append([]string{
				"sign", "--key", "k.key", "--yes", "--certificate", "leaf.pem",
				"--certificate-chain", "chain.pem",
			}, flags...), r.Name()+"@"+target.Digest.String())...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HOME="+dir, "TUF_ROOT="+filepath.Join(dir, "tuf"), "COSIGN_PASSWORD=secret",
				"HTTPS_PROXY=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s sign: %v\n%s", name, err, out)
			}
			got, err := signing.Verify(t.Context(), r, target, []signing.Verifier{authority.At(time.Now())})
			if err != nil || got[0].Identity != person || got[0].Format != signing.FormatLegacy {
				t.Errorf("Verify = %+v, %v", got, err)
			}
			if _, err := signing.Verify(t.Context(), r, target, []signing.Verifier{authority.At(time.Now().Add(time.Hour))}); !errors.Is(err, fault.ErrBadSignature) {
				t.Errorf("an hour later: %v, want %v", err, fault.ErrBadSignature)
			}
			if _, err := signing.Verify(t.Context(), r, target, []signing.Verifier{stranger.At(time.Now())}); !errors.Is(err, fault.ErrBadSignature) {
				t.Errorf("another authority: %v, want %v", err, fault.ErrBadSignature)
			}
		})
	}
}
