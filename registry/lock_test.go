package registry_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// putImage pushes an image for one platform and returns its manifest's descriptor and its compressed size.
func putImage(t testing.TB, r *registry.Repository, media, config, tag string, layers ...string) (ocispec.Descriptor, int64) {
	t.Helper()
	m := ocispec.Manifest{MediaType: media}
	m.SchemaVersion = 2
	m.Config = blobOf([]byte(config))
	m.Config.MediaType = ocispec.MediaTypeImageConfig
	size := m.Config.Size
	if err := r.PushBlob(t.Context(), m.Config, []byte(config)); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d := blobOf([]byte(l))
		d.MediaType = ocispec.MediaTypeImageLayerGzip
		m.Layers = append(m.Layers, d)
		size += d.Size
		if err := r.PushBlob(t.Context(), d, []byte(l)); err != nil {
			t.Fatal(err)
		}
	}
	return putJSON(t, r, media, m, tag), size
}

func putJSON(t testing.TB, r *registry.Repository, media string, v any, tag string) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	desc := blobOf(data)
	desc.MediaType = media
	if err := r.PushManifest(t.Context(), desc, data, tag); err != nil {
		t.Fatal(err)
	}
	return desc
}

func TestLockImage(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		for name, media := range map[string][2]string{
			"OCI":    {ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex},
			"Docker": {dockerManifest, dockerIndex},
		} {
			if kind == testenv.Referrers && name == "Docker" {
				continue // it takes OCI manifests only
			}
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				t.Parallel()
				s := testenv.Registry(t, kind)
				c := clientFor(t, s)
				r := openName(t, c, s.Reference("line/web"))
				amd, amdSize := putImage(t, r, media[0], `{"os":"linux","architecture":"amd64"}`, "single", "base", "amd64")
				arm, armSize := putImage(t, r, media[0], `{"os":"linux","architecture":"arm","variant":"v7"}`, "", "base", "arm", "base")
				arm64, arm64Size := putImage(t, r, media[0], `{"os":"linux","architecture":"arm64"}`, "", "arm64")
				attestation, _ := putImage(t, r, media[0], `{"os":"unknown","architecture":"unknown"}`, "", "in-toto")
				on := func(d ocispec.Descriptor, p ocispec.Platform) ocispec.Descriptor { d.Platform = &p; return d }
				index := ocispec.Index{MediaType: media[1], Manifests: []ocispec.Descriptor{
					on(arm, ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}),
					on(arm64, ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}),
					on(amd, ocispec.Platform{OS: "linux", Architecture: "amd64"}),
					on(arm, ocispec.Platform{OS: "linux", Architecture: "amd64"}), // the first counts
					on(attestation, ocispec.Platform{OS: "unknown", Architecture: "unknown"}),
				}}
				index.SchemaVersion = 2
				whole := putJSON(t, r, media[1], index, "2")
				want := artifacts.LockedImage{Reference: s.Reference("line/web:2"), Digest: whole.Digest, Platforms: []artifacts.LockedPlatform{
					{Platform: "linux/amd64", Digest: amd.Digest, Size: amdSize},
					{Platform: "linux/arm/v7", Digest: arm.Digest, Size: armSize - int64(len("base"))}, // a layer twice moves once
					{Platform: "linux/arm64", Digest: arm64.Digest, Size: arm64Size},
				}}
				got, err := c.LockImage(t.Context(), s.Reference("line/web:2"))
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("LockImage of an index = %v (-want +got):\n%s", err, diff)
				}
				byDigest := s.Reference("line/web:moved@" + whole.Digest.String())
				if got, err = c.LockImage(t.Context(), byDigest); err != nil || got.Digest != whole.Digest || got.Reference != byDigest {
					t.Errorf("LockImage by digest = %+v, %v", got, err)
				}
				want = artifacts.LockedImage{Reference: s.Reference("line/web:single"), Digest: amd.Digest, Platforms: want.Platforms[:1]}
				got, err = c.LockImage(t.Context(), s.Reference("line/web:single"))
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("LockImage of a manifest = %v (-want +got):\n%s", err, diff)
				}
			})
		}
	}
}

// A mirror may show what a tag named before; what is locked is what it names at the registry, and nothing where that is silent.
func TestLockImagePassesAnOldMirror(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old, _ := putImage(t, s.atMirror, ocispec.MediaTypeImageManifest, `{"os":"linux","architecture":"amd64"}`, "2", "old")
	latest, _ := putImage(t, s.direct, ocispec.MediaTypeImageManifest, `{"os":"linux","architecture":"amd64"}`, "2", "new")
	ref := s.upstream.Reference("line/state:2")
	if got, err := s.client.LockImage(t.Context(), ref); err != nil || got.Digest != latest.Digest {
		t.Errorf("LockImage = %v, %v, want %v", got.Digest, err, latest.Digest)
	}
	s.upstream.Down()
	if got, err := s.client.LockImage(t.Context(), ref); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("LockImage where only the mirror answers = %v, %v, want fault.ErrTemporary", got.Digest, err)
	}
	// A digest names the same everywhere.
	if got, err := s.client.LockImage(t.Context(), ref+"@"+old.Digest.String()); err != nil || got.Digest != old.Digest {
		t.Errorf("LockImage by digest where only the mirror answers = %v, %v, want %v", got.Digest, err, old.Digest)
	}
}

func TestLockImageRefuses(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Lax)
	c := clientFor(t, s)
	r := openName(t, c, s.Reference("line/web"))
	putImage(t, r, ocispec.MediaTypeImageManifest, `{}`, "no-platform", "x")
	putImage(t, r, ocispec.MediaTypeImageManifest, `[]`, "no-config", "x")
	putJSON(t, r, ocispec.MediaTypeImageIndex, map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "manifests": []any{}}, "empty")
	putJSON(t, r, ocispec.MediaTypeImageManifest, map[string]any{
		"mediaType": ocispec.MediaTypeImageManifest, "config": map[string]any{"digest": someDigest, "size": -5}, "layers": []any{},
	}, "negative")
	for ref, is := range map[string]error{
		"line/web:missing": fault.ErrNotFound, "line/web:no-platform": fault.ErrUnsupported, "line/web:no-config": fault.ErrInvalid,
		"line/web:empty": fault.ErrUnsupported, "line/web:negative": fault.ErrInvalid, "line/WEB": fault.ErrInvalid,
	} {
		if got, err := c.LockImage(t.Context(), s.Reference(ref)); !errors.Is(err, is) {
			t.Errorf("LockImage(%s) = %+v, %v, want %v", ref, got, err, is)
		}
	}
}
