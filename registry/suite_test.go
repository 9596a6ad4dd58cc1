package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// suite holds the places that open gives, registries and OCI layouts alike and an empty one at each call, against what is promised. lax: a
// manifest whose layers are missing is accepted.
func suite(t *testing.T, open func(t *testing.T) *registry.Repository, lax bool) {
	t.Run("blobs", func(t *testing.T) { blobs(t, open(t)) })
	t.Run("manifests and tags", func(t *testing.T) { manifests(t, open(t)) })
	t.Run("referrers", func(t *testing.T) { referrers(t, open(t)) })
	t.Run("nothing there", func(t *testing.T) { nothing(t, open(t)) })
	t.Run("bad input", func(t *testing.T) { badInput(t, open(t)) })
	t.Run("incomplete manifest", func(t *testing.T) { incomplete(t, open(t), lax) })
}

// blobOf describes data as a layer.
func blobOf(data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// manifestOf makes an artifact's manifest with one layer and the empty configuration.
func manifestOf(t testing.TB, layer ocispec.Descriptor, subject *ocispec.Descriptor) (ocispec.Descriptor, []byte) {
	t.Helper()
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example.thing", Config: empty(), Layers: []ocispec.Descriptor{layer}, Subject: subject,
		Annotations: map[string]string{"org.example.layer": layer.Digest.Encoded()[:8]},
	})
	if err != nil {
		t.Fatal(err)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))}, data
}

// empty is the configuration of artifacts that have none.
func empty() ocispec.Descriptor {
	d := blobOf([]byte("{}"))
	d.MediaType = ocispec.MediaTypeEmptyJSON
	return d
}

// put pushes an artifact with one layer and returns its manifest; subject and tag may be left out.
func put(t testing.TB, s *registry.Repository, content string, subject *ocispec.Descriptor, tag string) (ocispec.Descriptor, []byte) {
	t.Helper()
	ctx := t.Context()
	layer := blobOf([]byte(content))
	for _, push := range []func() error{
		func() error { return s.PushBlob(ctx, empty(), []byte("{}")) },
		func() error { return s.PushBlob(ctx, layer, []byte(content)) },
	} {
		if err := push(); err != nil {
			t.Fatalf("PushBlob: %v", err)
		}
	}
	desc, data := manifestOf(t, layer, subject)
	err := error(nil)
	if subject != nil {
		err = s.PushReferrer(ctx, desc, data)
	} else {
		err = s.PushManifest(ctx, desc, data, tag)
	}
	if err != nil {
		t.Fatalf("push manifest of %q: %v", content, err)
	}
	return desc, data
}

func blobs(t *testing.T, s *registry.Repository) {
	ctx := t.Context()
	for _, content := range []string{"", "x", string(make([]byte, 300<<10))} {
		desc := blobOf([]byte(content))
		for range 2 { // again is no error
			if err := s.PushBlob(ctx, desc, []byte(content)); err != nil {
				t.Fatalf("PushBlob(%d bytes) = %v", len(content), err)
			}
		}
		if ok, err := s.Exists(ctx, desc); !ok || err != nil {
			t.Errorf("Exists(%d bytes) = %v, %v, want true", len(content), ok, err)
		}
		got, err := s.Blob(ctx, desc, desc.Size)
		if err != nil || string(got) != content {
			t.Errorf("Blob(%d bytes) = %d bytes, %v", len(content), len(got), err)
		}
		r, err := s.OpenBlob(ctx, desc)
		if err != nil {
			t.Fatalf("OpenBlob(%d bytes) = %v", len(content), err)
		}
		got, err = io.ReadAll(r)
		if err != nil || string(got) != content {
			t.Errorf("ReadAll of %d bytes = %d bytes, %v", len(content), len(got), err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
}

func manifests(t *testing.T, s *registry.Repository) {
	ctx := t.Context()
	one, data := put(t, s, "one", nil, "")
	want := ocispec.Descriptor{MediaType: one.MediaType, Digest: one.Digest, Size: one.Size}
	got, bytes, err := s.Manifest(ctx, one.Digest)
	if err != nil || string(bytes) != string(data) || !cmp.Equal(got, want) {
		t.Errorf("Manifest = %+v, %q, %v, want %+v", got, bytes, err, want)
	}
	if got, err := s.Resolve(ctx, one.Digest.String()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("Resolve(digest) = %+v, %v, want %+v", got, err, want)
	}
	if ok, err := s.Exists(ctx, one); !ok || err != nil {
		t.Errorf("Exists(manifest) = %v, %v, want true", ok, err)
	}
	two, _ := put(t, s, "two", nil, "moving")
	if err := s.Tag(ctx, one, "first.v1"); err != nil {
		t.Fatalf("Tag = %v", err)
	}
	if got, err := s.Resolve(ctx, "moving"); err != nil || got.Digest != two.Digest {
		t.Errorf("Resolve(moving) = %v, %v, want %v", got.Digest, err, two.Digest)
	}
	if err := s.Tag(ctx, one, "moving"); err != nil {
		t.Fatalf("Tag = %v", err)
	}
	if got, err := s.Resolve(ctx, "moving"); err != nil || got.Digest != one.Digest {
		t.Errorf("Resolve(moving) after Tag = %v, %v, want %v", got.Digest, err, one.Digest)
	}
	if _, _, err := s.Manifest(ctx, two.Digest); err != nil {
		t.Errorf("Manifest that lost its tag = %v", err)
	}
	tags, err := s.Tags(ctx)
	if err != nil || !cmp.Equal(tags, []string{"first.v1", "moving"}) {
		t.Errorf("Tags = %q, %v", tags, err)
	}
	for prefix, want := range map[string][]string{"first.v": {"first.v1"}, "fir": {"first.v1"}, "n": {}, "zz": {}} {
		if tags, err := s.TagsWithPrefix(ctx, prefix); err != nil || !cmp.Equal(tags, want, cmpopts.EquateEmpty()) {
			t.Errorf("TagsWithPrefix(%q) = %q, %v, want %q", prefix, tags, err, want)
		}
	}
}

func referrers(t *testing.T, s *registry.Repository) {
	ctx := t.Context()
	subject, _ := put(t, s, "subject", nil, "t")
	if list, err := s.Referrers(ctx, subject); err != nil || len(list) != 0 {
		t.Errorf("Referrers of the unsigned = %v, %v, want none", list, err)
	}
	var want []string
	for i := range 3 {
		d, data := put(t, s, fmt.Sprintf("signature %d", i), &subject, "")
		if err := s.PushReferrer(ctx, d, data); err != nil {
			t.Errorf("PushReferrer again = %v", err)
		}
		want = append(want, d.Digest.String())
	}
	list, err := s.Referrers(ctx, ocispec.Descriptor{Digest: subject.Digest})
	if err != nil {
		t.Fatalf("Referrers = %v", err)
	}
	var got []string
	for _, d := range list {
		got = append(got, d.Digest.String())
		if _, _, err := s.Manifest(ctx, d.Digest); err != nil {
			t.Errorf("Manifest of a referrer = %v", err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Referrers (-want +got):\n%s", diff)
	}
}

func nothing(t *testing.T, s *registry.Repository) {
	ctx := t.Context()
	desc := blobOf([]byte("never pushed"))
	manifest := desc
	manifest.MediaType = ocispec.MediaTypeImageManifest
	for _, d := range []ocispec.Descriptor{desc, manifest} {
		if ok, err := s.Exists(ctx, d); ok || err != nil {
			t.Errorf("Exists(%s) = %v, %v, want false", d.MediaType, ok, err)
		}
	}
	if list, err := s.Referrers(ctx, manifest); err != nil || len(list) != 0 {
		t.Errorf("Referrers of nothing = %v, %v, want none", list, err)
	}
	_, blob := s.Blob(ctx, desc, 1<<20)
	_, _, byDigest := s.Manifest(ctx, desc.Digest)
	_, byTag := s.Resolve(ctx, "nowhere")
	_, open := s.OpenBlob(ctx, desc)
	for name, err := range map[string]error{
		"Blob": blob, "Manifest": byDigest, "Resolve": byTag, "OpenBlob": open, "Tag": s.Tag(ctx, manifest, "t"),
	} {
		if !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%s = %v, want fault.ErrNotFound", name, err)
		}
	}
}

func badInput(t *testing.T, s *registry.Repository) {
	ctx := t.Context()
	desc := blobOf([]byte("right"))
	if err := s.PushBlob(ctx, desc, []byte("wrong")); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("PushBlob of other bytes = %v, want fault.ErrDigestMismatch", err)
	}
	if err := s.PushManifest(ctx, desc, []byte("wrong"), "t"); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("PushManifest of other bytes = %v, want fault.ErrDigestMismatch", err)
	}
	if err := s.PushBlob(ctx, desc, []byte("right")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Blob(ctx, desc, 3); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("Blob over the limit = %v, want fault.ErrTooLarge", err)
	}
	for name, size := range map[string]int64{"short": 3, "long": 9} {
		wrong := desc
		wrong.Size = size
		if _, err := s.Blob(ctx, wrong, 1<<20); err == nil {
			t.Errorf("Blob with a %s size = nil, want an error", name)
		}
	}
	for _, target := range []string{"", "a b", "../x", "sha256:abc", "-x", "sha256:" + string(make([]byte, 64))} {
		if _, err := s.Resolve(ctx, target); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Resolve(%q) = %v, want fault.ErrInvalid", target, err)
		}
	}
	for _, bad := range []ocispec.Descriptor{{}, {Digest: "sha256:1"}, {Digest: desc.Digest, Size: -1}, {Digest: "md5:d41d8cd98f00b204e9800998ecf8427e"}} {
		if _, err := s.Blob(ctx, bad, 1<<20); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Blob(%+v) = %v, want fault.ErrInvalid", bad, err)
		}
		if err := s.PushBlob(ctx, bad, nil); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("PushBlob(%+v) = %v, want fault.ErrInvalid", bad, err)
		}
	}
	plain, data := manifestOf(t, desc, nil)
	if err := s.PushReferrer(ctx, plain, data); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("PushReferrer without a subject = %v, want fault.ErrInvalid", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Resolve(ended, "t"); !errors.Is(err, context.Canceled) && !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Resolve with an ended context = %v, want context.Canceled", err)
	}
}

func incomplete(t *testing.T, s *registry.Repository, lax bool) {
	ctx := t.Context()
	if err := s.PushBlob(ctx, empty(), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	desc, data := manifestOf(t, blobOf([]byte("a layer that is not there")), nil)
	err := s.PushManifest(ctx, desc, data, "t")
	switch {
	case lax && err != nil:
		t.Errorf("PushManifest without its layer = %v, want nil here", err)
	case !lax && err == nil: // 400, 404 or 500, registries differ
		t.Error("PushManifest without its layer = nil, want an error")
	}
}
