package images

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// shelf serves documents by digest, and one document for every other digest.
type shelf struct {
	docs  map[digest.Digest][]byte
	other []byte
}

func (s shelf) get(_ context.Context, d *ocispec.Descriptor) ([]byte, error) {
	data, ok := s.docs[d.Digest]
	if !ok && s.other == nil {
		return nil, fault.ErrNotFound
	}
	if !ok {
		data = s.other
	}
	d.Size = int64(len(data))
	return data, nil
}

func (s shelf) put(t testing.TB, v any) digest.Digest {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(b)
	s.docs[d] = b
	return d
}

func TestReadImage(t *testing.T) {
	s := shelf{docs: map[digest.Digest][]byte{}}
	match := platforms.Only(platforms.MustParse("linux/arm64"))
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("l"), Size: 9, URLs: []string{"http://elsewhere"}}
	config := func(arch string, ids ...digest.Digest) ocispec.Descriptor {
		c := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: arch}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: ids}}
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: s.put(t, c), Size: 1}
	}
	manifest := func(c ocispec.Descriptor, layers ...ocispec.Descriptor) digest.Digest {
		return s.put(t, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: layers})
	}
	entry := func(d digest.Digest, platform string) ocispec.Descriptor {
		p := platforms.MustParse(platform)
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: 1, Platform: &p}
	}
	index := func(m ...ocispec.Descriptor) digest.Digest {
		return s.put(t, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: m})
	}
	id := digest.FromString("diff")
	good := manifest(config("arm64", id), layer)
	attested := entry(manifest(config("arm64")), "linux/arm64")
	attested.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
	deep := index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: index(entry(good, "linux/arm64")), Size: 1})
	deeper := index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: deep, Size: 1})
	artifact := manifest(ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON, Digest: ocispec.DescriptorEmptyJSON.Digest, Size: 2}, layer)
	odd := layer
	odd.MediaType = "application/vnd.example"
	for name, tc := range map[string]struct {
		root digest.Digest
		want error // nil: good is read
	}{
		"manifest":                   {good, nil},
		"index":                      {index(attested, entry(manifest(config("amd64", id), layer), "linux/amd64"), entry(good, "linux/arm64")), nil},
		"v8 before an older variant": {index(entry(manifest(config("arm", id), layer), "linux/arm/v7"), entry(good, "linux/arm64/v8")), nil},
		"index in an index":          {deep, nil},
		"too deep":                   {deeper, fault.ErrUnsupported},
		"only others":                {index(entry(manifest(config("amd64", id), layer), "linux/amd64")), fault.ErrUnfit},
		"config of another platform": {manifest(config("s390x", id), layer), fault.ErrUnfit},
		"not an image":               {artifact, fault.ErrUnsupported},
		"strange layer":              {manifest(config("arm64", id), odd), fault.ErrUnsupported},
		"a layer id too few":         {manifest(config("arm64"), layer), fault.ErrInvalid},
		"a layer id that is none":    {manifest(config("arm64", "sha256:x"), layer), fault.ErrInvalid},
		"a configuration":            {config("arm64", id).Digest, fault.ErrUnsupported},
		"nothing":                    {digest.FromString("nothing"), fault.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			img, err := readImage(t.Context(), tc.root, match, s.get)
			if !errors.Is(err, tc.want) {
				t.Fatalf("readImage = %v, want %v", err, tc.want)
			}
			if err != nil {
				return
			}
			if !slices.Equal(img.chain, []digest.Digest{id}) || img.root.Digest != tc.root || img.path[len(img.path)-1].Digest != good {
				t.Errorf("readImage = %+v, want %s", img, good)
			}
			if img.manifest.Layers[0].URLs != nil {
				t.Error("a layer may come from elsewhere")
			}
		})
	}
}

func FuzzReadImage(f *testing.F) {
	for _, s := range []string{
		"", "{}", "[]", "null", `{"manifests":[{}]}`, `{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[null]}`,
		`{"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[]}`,
		`{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar"}],"rootfs":{"diff_ids":["sha256:"]},"config":{"mediaType":"application/vnd.oci.image.config.v1+json"}}`,
	} {
		f.Add([]byte(s))
	}
	match := platforms.Only(platforms.DefaultSpec())
	f.Fuzz(func(t *testing.T, data []byte) {
		img, err := readImage(t.Context(), digest.FromBytes(data), match, shelf{other: data}.get)
		if err == nil && (len(img.path) == 0 || len(img.chain) != len(img.manifest.Layers)) {
			t.Errorf("an image that is none: %+v", img)
		}
	})
}
