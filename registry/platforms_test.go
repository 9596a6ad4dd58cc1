package registry

import (
	"errors"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Variants belong to their platform, attestations to what they are about, and what says nothing stays.
func TestPlatforms(t *testing.T) {
	entry := func(name, os, architecture, variant, about string) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(name)}
		if os != "" {
			d.Platform = &ocispec.Platform{OS: os, Architecture: architecture, Variant: variant}
		}
		if about != "" {
			d.Annotations = map[string]string{attestationOf: digest.FromString(about).String()}
		}
		return d
	}
	all := []ocispec.Descriptor{
		entry("amd64", "linux", "amd64", "", ""), entry("v6", "linux", "arm", "v6", ""), entry("v7", "linux", "arm", "v7", ""),
		entry("of amd64", "unknown", "unknown", "", "amd64"), entry("of v7", "unknown", "unknown", "", "v7"), entry("any", "", "", "", ""),
	}
	for _, c := range []struct {
		want Platforms
		get  []string
	}{
		{nil, []string{"amd64", "v6", "v7", "of amd64", "of v7", "any"}},
		{Platforms{"linux/arm"}, []string{"v6", "v7", "of v7", "any"}},
		{Platforms{"linux/arm/v7"}, []string{"v7", "of v7", "any"}},
		{Platforms{"linux/amd64", "linux/arm64"}, []string{"amd64", "of amd64", "any"}},
	} {
		got, err := c.want.of(all)
		if err != nil {
			t.Fatal(err)
		}
		var want []digest.Digest
		for _, name := range c.get {
			want = append(want, digest.FromString(name))
		}
		if !slices.EqualFunc(got, want, func(a ocispec.Descriptor, b digest.Digest) bool { return a.Digest == b }) {
			t.Errorf("%v.of = %v, want %v", c.want, got, c.get)
		}
	}
	if _, err := (Platforms{"linux/arm64"}).of(all); !errors.Is(err, fault.ErrUnfit) {
		t.Errorf("for none: %v", err)
	}
}
