package signing_test

import (
	"testing"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// BenchmarkVerify finds and checks the one signature of an artifact; the registry is in memory.
func BenchmarkVerify(b *testing.B) {
	private, public, err := signing.GenerateKey([]byte(password))
	if err != nil {
		b.Fatal(err)
	}
	key, err := signing.ParsePublicKey("release", public)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy} {
		b.Run(string(f), func(b *testing.B) {
			st := signingtest.NewMemory()
			subject := st.Artifact(b, "hello")
			signer, err := signing.NewSigner(private, []byte(password), signing.SignOptions{Format: f})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := signer.Sign(b.Context(), st, subject); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := signing.Verify(b.Context(), st, subject, []signing.Trustee{key}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
