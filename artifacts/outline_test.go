package artifacts_test

import (
	"errors"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestReadOutline(t *testing.T) {
	const image = `"mediaType":"application/vnd.oci.image.manifest.v1+json"`
	for name, tt := range map[string]struct {
		manifest string
		kind     artifacts.Kind
		size     int64
	}{
		"image":         {`{"schemaVersion":2,` + image + `,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":3},"layers":[{"size":4},{"size":-9},{"size":9223372036854775807}]}`, artifacts.KindImage, 7},
		"docker image":  {`{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":"application/vnd.docker.container.image.v1+json"}}`, artifacts.KindImage, 0},
		"index":         {`{"schemaVersion":2,"manifests":[]}`, artifacts.KindIndex, 0},
		"state":         {`{"schemaVersion":2,` + image + `,"artifactType":"application/vnd.margo.manifest.v1+json"}`, artifacts.KindState, 0},
		"older state":   {`{"schemaVersion":2,` + image + `,"config":{"mediaType":"application/vnd.margo.manifest.v1+json"}}`, artifacts.KindState, 0},
		"trust":         {`{"schemaVersion":2,` + image + `,"artifactType":"application/vnd.longshore.trust.v1+yaml"}`, artifacts.KindTrust, 0},
		"signature":     {`{"schemaVersion":2,` + image + `,"config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json"}]}`, artifacts.KindSignature, 0},
		"sbom":          {`{"schemaVersion":2,` + image + `,"artifactType":"application/spdx+json"}`, artifacts.KindOther, 0},
		"index of ours": {`{"schemaVersion":2,"artifactType":"application/x","manifests":[]}`, artifacts.KindOther, 0},
		"nothing":       {`{"schemaVersion":2}`, artifacts.KindOther, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := artifacts.ReadOutline([]byte(tt.manifest))
			if err != nil || o.Kind != tt.kind || o.Size() != tt.size {
				t.Errorf("ReadOutline = %+v, %v, size %d, want kind %q, size %d", o, err, o.Size(), tt.kind, tt.size)
			}
		})
	}
	for name, tt := range map[string]struct {
		data []byte
		want error
	}{
		"noise":     {[]byte("x"), fault.ErrInvalid},
		"schema 1":  {[]byte(`{"schemaVersion":1}`), fault.ErrUnsupported},
		"too large": {make([]byte, artifacts.MaxManifest+1), fault.ErrTooLarge},
	} {
		if _, err := artifacts.ReadOutline(tt.data); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// FuzzReadOutline: whatever a manifest is, its outline is read or refused.
func FuzzReadOutline(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":3},"layers":[{"size":4}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := artifacts.ReadOutline(data)
		if (o == nil) == (err == nil) || o != nil && o.Size() < 0 {
			t.Errorf("ReadOutline = %+v, %v", o, err)
		}
	})
}
