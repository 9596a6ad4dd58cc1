package registry_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// What the other rooms ask for. They declare it themselves and are not imported here; the programs that wire them would
// not compile without it.
var (
	_ interface { // the agent's source of artifacts
		Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
		Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
		Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error)
	} = (*registry.Client)(nil)
	_ interface { // the agent's store of small artifacts
		Get(ctx context.Context, d digest.Digest) ([]byte, error)
		Put(ctx context.Context, d ocispec.Descriptor, data []byte) error
		Retain(ctx context.Context, keep []digest.Digest) error
	} = (*registry.Layout)(nil)
	_ interface { // where signatures are read and written
		Name() string
		Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
		Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error)
		Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)
		Referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error)
		PushBlob(ctx context.Context, d ocispec.Descriptor, data []byte) error
		PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error
		PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error
	} = (*registry.Repository)(nil)
)

func TestStores(t *testing.T) {
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			c, n := clientFor(t, s), 0
			suite(t, func(t *testing.T) *registry.Repository {
				n++
				return openName(t, c, s.Reference(fmt.Sprintf("line/suite%d", n)))
			}, kind == testenv.Lax)
		})
	}
	t.Run("layout", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, registry.Options{})
		suite(t, func(t *testing.T) *registry.Repository { return openName(t, c, "oci-layout:"+t.TempDir()) }, false)
	})
}
