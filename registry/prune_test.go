package registry_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// One referrer goes, the others stay, whoever keeps the list.
func TestRemoveReferrer(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.DistributionToken} {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			repo := openName(t, clientFor(t, s), s.Host+"/plant/state")
			if kind == testenv.DistributionToken {
				opened, err := clientFor(t, s).Open(t.Context(), mustParse(t, s.Host+"/plant/state"))
				if err != nil {
					t.Fatal(err)
				}
				repo = opened
			}
			subject, _ := put(t, repo, "subject", nil, "")
			var made []ocispec.Descriptor
			for _, content := range []string{"one", "two", "three"} {
				layer := blobOf([]byte(content))
				if err := repo.PushBlob(t.Context(), layer, []byte(content)); err != nil {
					t.Fatal(err)
				}
				d, data := manifestOf(t, layer, &subject)
				if err := repo.PushReferrer(t.Context(), d, data); err != nil {
					t.Fatal(err)
				}
				made = append(made, d)
			}
			for range 2 { // gone is no error
				err := repo.RemoveReferrer(t.Context(), subject, made[1].Digest)
				if err != nil && (kind != testenv.Referrers || !errors.Is(err, fault.ErrUnsupported)) {
					t.Fatalf("RemoveReferrer = %v", err)
				}
			}
			list, err := repo.Referrers(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			left := map[string]bool{}
			for _, d := range list {
				left[d.Digest.String()] = true
			}
			if len(left) != 2 || left[made[1].Digest.String()] {
				t.Errorf("referrers left = %v, want all but %s", list, made[1].Digest)
			}
		})
	}
	layout := newClient(t, registry.Options{})
	ref := mustParse(t, "oci-layout:"+t.TempDir())
	repo, err := layout.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.RemoveReferrer(t.Context(), empty(), empty().Digest); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("RemoveReferrer of a layout = %v", err)
	}
}

// What is removed is gone with its tags, and everything that referred to it with it; what others name stays.
func TestRemoveManifest(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax, testenv.DistributionToken} {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			repo, err := clientFor(t, s).Open(t.Context(), mustParse(t, s.Host+"/plant/state"))
			if err != nil {
				t.Fatal(err)
			}
			old, _ := put(t, repo, "old", nil, "press-07.v1")
			now, nowData := put(t, repo, "now", nil, "press-07.v2")
			removed := []ocispec.Descriptor{old}
			sign := func(subject ocispec.Descriptor, content string) ocispec.Descriptor {
				d, _ := put(t, repo, content, &subject, "")
				return d
			}
			one, two := sign(old, "one"), sign(old, "two")
			nested := sign(one, "signature of a signature")
			stays := sign(now, "stays")
			legacy := "sha256-" + old.Digest.Encoded()
			sig, _ := put(t, repo, "legacy", nil, legacy+".sig")
			sbom, sbomData := put(t, repo, "sbom", nil, legacy+".sbom")
			if err := repo.PushManifest(t.Context(), sbom, sbomData, "sha256-"+now.Digest.Encoded()+".sbom"); err != nil {
				t.Fatal(err)
			}
			att, _ := put(t, repo, "attestation", nil, legacy+".att")
			attSig, _ := put(t, repo, "signature of the attestation", nil, "sha256-"+att.Digest.Encoded()+".sig")
			sbomSig, _ := put(t, repo, "signature of the sbom", nil, "sha256-"+sbom.Digest.Encoded()+".sig")
			own, _ := put(t, repo, "sbom of the signature", nil, "sha256-"+attSig.Digest.Encoded()+".sbom")
			ownSig, _ := put(t, repo, "signature of that", nil, "sha256-"+own.Digest.Encoded()+".sig")
			// What others name, too: an attestation about both states, a document with a tag of its own, and one that refers to the other state.
			shares := func(content, suffix string, of *ocispec.Descriptor, also ...string) (d, sig ocispec.Descriptor) {
				third, _ := put(t, repo, "shares its "+content, nil, "")
				d, data := put(t, repo, content, of, "")
				for _, tag := range append(also, "sha256-"+third.Digest.Encoded()+suffix) {
					if err := repo.PushManifest(t.Context(), d, data, tag); err != nil {
						t.Fatal(err)
					}
				}
				sig, _ = put(t, repo, "signature of "+content, nil, "sha256-"+d.Digest.Encoded()+".sig")
				removed = append(removed, third)
				return d, sig
			}
			both, bothSig := shares("attestation of both", ".att", nil, "sha256-"+now.Digest.Encoded()+".att")
			named, namedSig := shares("sbom with a tag", ".sbom", nil, "line-monitor-sbom")
			refers, refersSig := shares("sbom of the other", ".sbom", &now)
			list, err := repo.Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tags := registry.NewTagList(list)
			for range 2 { // gone is no error
				for _, d := range removed {
					if err := repo.RemoveManifest(t.Context(), d.Digest, "press-07.v1"); err != nil {
						t.Fatal(err)
					}
					if _, err := repo.RemoveReferrers(t.Context(), d.Digest, tags); err != nil {
						t.Fatal(err)
					}
				}
			}
			for name, d := range map[string]ocispec.Descriptor{"state": old, "signature": one, "second": two, "nested": nested, "legacy": sig, "attestation": att, "its signature": attSig, "the signature of its sbom": ownSig} {
				if _, _, err := repo.Manifest(t.Context(), d.Digest); !errors.Is(err, fault.ErrNotFound) {
					t.Errorf("%s: %v, want that it is gone", name, err)
				}
			}
			list, err = repo.Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tag := range list {
				if tag == "press-07.v1" || strings.HasPrefix(tag, legacy) || strings.Contains(tag, att.Digest.Encoded()) || strings.Contains(tag, attSig.Digest.Encoded()) || strings.Contains(tag, own.Digest.Encoded()) {
					t.Errorf("the tag %s is there", tag)
				}
			}
			for name, d := range map[string]ocispec.Descriptor{
				"state": now, "signature": stays, "sbom": sbom, "its signature": sbomSig, "attestation": both, "the signature of the attestation": bothSig,
				"sbom with a tag": named, "the signature of that": namedSig, "sbom that refers to it": refers, "the signature of that one": refersSig,
			} {
				if _, _, err := repo.Manifest(t.Context(), d.Digest); err != nil {
					t.Errorf("%s of what stays: %v", name, err)
				}
			}
			if left, err := repo.Referrers(t.Context(), now); err != nil || len(left) != 2 {
				t.Errorf("referrers of what stays: %v, %v", left, err)
			}
			if err := repo.PushManifest(t.Context(), now, nowData, "press-07.v3"); err != nil {
				t.Errorf("it can be pushed again: %v", err)
			}
		})
	}
}

// A registry that lets nobody delete, or keeps tags, says so, and what to do.
func TestRemoveManifestRefused(t *testing.T) {
	for status, want := range map[int]error{
		http.StatusMethodNotAllowed: fault.ErrUnsupported, http.StatusPreconditionFailed: fault.ErrConflict, http.StatusForbidden: fault.ErrDenied,
		http.StatusNotImplemented: fault.ErrUnsupported,
	} {
		s := testenv.Registry(t, testenv.Distribution)
		repo := openName(t, newClient(t, registry.Options{PlainHTTP: true, RetryBudget: -1}), s.Host+"/plant/state")
		d, _ := put(t, repo, "state", nil, "press-07.v1")
		sign, _ := put(t, repo, "signature", &d, "")
		s.Faults.Add(testenv.Rule{Method: http.MethodDelete, Effect: testenv.Status(status, 0)})
		if err := repo.RemoveManifest(t.Context(), d.Digest, "press-07.v1"); !errors.Is(err, want) || fault.Hint(err) == "" {
			t.Errorf("%d: %v (%s), want %v with a hint", status, err, fault.Hint(err), want)
		}
		if _, err := repo.RemoveReferrers(t.Context(), d.Digest, nil); !errors.Is(err, want) {
			t.Errorf("%d: referrers: %v, want %v", status, err, want)
		}
		if _, _, err := repo.Manifest(t.Context(), sign.Digest); err != nil {
			t.Errorf("%d: the signature: %v", status, err)
		}
	}
	layout := newClient(t, registry.Options{})
	repo, err := layout.Open(t.Context(), mustParse(t, "oci-layout:"+t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.RemoveManifest(t.Context(), empty().Digest); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("of a layout: %v", err)
	}
	if _, err := repo.RemoveReferrers(t.Context(), empty().Digest, nil); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("of a layout: %v", err)
	}
}

func mustParse(t *testing.T, s string) registry.Reference {
	t.Helper()
	ref, err := registry.ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// What servers say of the time is passed on, and certificates are held against the clock that is given.
func TestClockOfClient(t *testing.T) {
	s := testenv.Registry(t, testenv.DistributionTLS)
	at := time.Now()
	said := make(chan time.Time, 64)
	o := registry.Options{
		RetryBudget: -1, CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile,
		Now: func() time.Time { return at }, Date: func(d time.Time) { said <- d },
	}
	ask := func() error {
		_, err := openName(t, newClient(t, o), s.Host+"/plant/state").Tags(context.WithoutCancel(t.Context()))
		return err
	}
	if err := ask(); err != nil && !errors.Is(err, fault.ErrNotFound) {
		t.Fatal(err)
	}
	if d := <-said; time.Since(d).Abs() > time.Minute {
		t.Errorf("the server says that it is %s", d.Format(http.TimeFormat))
	}
	at = at.AddDate(-30, 0, 0) // the device has lost its clock
	if err := ask(); err == nil || errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a certificate that is not valid yet passes: %v", err)
	}
}

// A mirror that shows an old list is gone around.
func TestUpstream(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	subject, _ := put(t, s.direct, "state", nil, "press-07")
	put(t, s.atMirror, "state", nil, "press-07")
	old, _ := put(t, s.atMirror, "old", &subject, "")
	newer, _ := put(t, s.direct, "newer", &subject, "")
	if list, err := s.repo.Referrers(t.Context(), subject); err != nil || len(list) != 1 || list[0].Digest != old.Digest {
		t.Errorf("Referrers = %v, %v, want the mirror's", list, err)
	}
	up := s.repo.Upstream()
	if list, err := up.Referrers(t.Context(), subject); err != nil || len(list) != 1 || list[0].Digest != newer.Digest || up.Name() != s.repo.Name() {
		t.Errorf("Referrers upstream = %v, %v", list, err)
	}
	if s.direct.Upstream() != s.direct {
		t.Error("a repository without mirrors is its own upstream")
	}
}
