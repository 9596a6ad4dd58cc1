package audit_test

import (
	"errors"
	"fmt"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
)

// Who says to have signed is read of signatures of this very artifact, and of nothing else that refers to it.
func TestClaimed(t *testing.T) {
	p := newPlace("registry.example/things")
	subject := p.putManifest(t, "app", ocispec.Manifest{ArtifactType: "application/x", Layers: []ocispec.Descriptor{p.putBlob("text/plain", []byte("app"))}})
	const bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	add := func(data []byte) {
		p.putManifest(t, "", ocispec.Manifest{ArtifactType: bundle, Subject: &subject, Layers: []ocispec.Descriptor{p.putBlob(bundle, data)}})
	}
	if all, err := audit.Claimed(t.Context(), p, subject); err != nil || len(all) != 0 {
		t.Errorf("Claimed of what nobody signed = %v, %v", all, err)
	}
	add(bundleOf(signing.PredicateSign, "")) // of another artifact
	of := func(predicate string) []byte {
		return bundleWith(fmt.Sprintf(`{"subject":[{"digest":{"sha256":%q},"annotations":{"dev.longshore.signed":"2026-01-02T03:04:05Z"}}],"predicateType":%q}`, subject.Digest.Encoded(), predicate),
			"ZrU2hhdrp8rw4Wkx+lO3EdbVVbmLR4qUPbnKhhc1AKc=")
	}
	add(of(signing.PredicateFreshness))
	add(of(signing.PredicateSign))
	all, err := audit.Claimed(t.Context(), p, subject)
	if err != nil || len(all) != 1 || all[0].Key == "" || all[0].Time != "2026-01-02T03:04:05Z" {
		t.Errorf("Claimed = %+v, %v", all, err)
	}
	p.fail["referrers"] = fault.ErrTemporary
	if all, err := audit.Claimed(t.Context(), p, subject); !errors.Is(err, fault.ErrTemporary) || len(all) != 0 {
		t.Errorf("Claimed without a list of referrers = %v, %v", all, err)
	}
}
