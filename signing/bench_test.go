package signing_test

import (
	"testing"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// BenchmarkVerify finds and checks the one signature of an artifact; the registry is in memory.
func BenchmarkVerify(b *testing.B) {
	for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy} {
		b.Run(string(f), func(b *testing.B) {
			st := signingtest.NewMemory()
			subject := st.Artifact(b, "hello")
			signed(b, newSigner(b, sign.Options{Format: f}), st, subject)
			key := releaseKey(b)
			for b.Loop() {
				if _, err := signing.Verify(b.Context(), st, subject, []signing.Verifier{key}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
