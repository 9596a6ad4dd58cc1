package signing_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// What was kept is verified as what the repository answered, and no more than that.
func TestKept(t *testing.T) {
	for _, f := range formats {
		t.Run(string(f), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject, other := st.Artifact(t, "hello"), st.Artifact(t, "other")
			made := signed(t, newSigner(t, sign.Options{Name: "release", Format: f}), st, subject)
			st.Attach(t, subject, MediaTypeBundle, MediaTypeBundle, bytes.Repeat([]byte("x"), MaxKept)) // of anybody: it takes no room away
			var k Keeper
			if data, err := k.Bytes(); data != nil || err != nil {
				t.Errorf("Bytes = %s, %v before anything was read", data, err)
			}
			if _, err := Verify(t.Context(), k.Keep(st), subject, []Verifier{releaseKey(t)}); err != nil {
				t.Fatal(err)
			}
			data, err := k.Bytes()
			if err != nil || len(data) > 16<<10 {
				t.Fatalf("%d bytes are kept, %v", len(data), err)
			}
			kept, err := ReadKept(data)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Verify(t.Context(), kept.Of(st.Name()), subject, []Verifier{releaseKey(t)})
			if diff := cmp.Diff(made[:1], got); err != nil || diff != "" {
				t.Errorf("Verify = %v, (-made +kept):\n%s", err, diff)
			}
			for name, verify := range map[string]func() error{
				"by another key": func() error {
					_, err := Verify(t.Context(), kept.Of(st.Name()), subject, []Verifier{signingtest.OtherSigner(t, sign.Options{}).Key()})
					return err
				},
				"another artifact": func() error {
					_, err := Verify(t.Context(), kept.Of(st.Name()), other, []Verifier{releaseKey(t)})
					return err
				},
				"another repository": func() error {
					_, err := Verify(t.Context(), kept.Of("registry.example/other"), subject, []Verifier{releaseKey(t)})
					return err
				},
				"damaged": func() error {
					kept, err := ReadKept(bytes.ReplaceAll(data, []byte(`"data":"`), []byte(`"data":"AAAA`)))
					if err == nil {
						_, err = Verify(t.Context(), kept.Of(st.Name()), subject, []Verifier{releaseKey(t)})
					}
					return err
				},
			} {
				if err := verify(); err == nil {
					t.Errorf("%s: it passes", name)
				}
			}
		})
	}
	if _, err := ReadKept([]byte("{")); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("ReadKept of half a file = %v", err)
	}
}
