// Package serve answers pulls from an OCI layout or an export, for a site without a registry of its own.
//
// It is the read-only part of the OCI distribution specification: tags, manifests, blobs with Range, referrers. Start reading at
// [New]. A manifest is hashed before it is sent. A blob is hashed while it is sent, and its last byte is sent only if all of it
// is correct; a damaged blob is not served again. Clients check digests in any case.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// Options of a server. The zero value serves "host/path" of an export as "path".
type Options struct {
	HostPaths bool         // "host/path" of an export is served as "host/path"
	Files     fs.FS        // of the layout, if the client reads it from files; nil: its folder
	Logger    *slog.Logger // damage is logged as an error; nil: nothing is logged
}

// Server is a read-only registry. It implements [http.Handler].
type Server struct {
	Repositories []string // by the names under which they are served, sorted
	Tags         int      // of all of them

	http.Handler

	files  *files
	served map[string]*registry.Repository
	log    *slog.Logger
}

// New opens the layout in a folder. Tags of an export are named "host/path:tag" in its index. A layout with plain tags has one
// repository, which has the folder's name. Repositories are read once, their tags at each request. fault.ErrConflict: two
// registries have the same path.
func New(ctx context.Context, client *registry.Client, dir string, o Options) (*Server, error) {
	if o.Files == nil {
		o.Files = folder(dir)
	}
	s := &Server{files: &files{root: o.Files, damaged: map[digest.Digest]state{}}, served: map[string]*registry.Repository{}, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	carried, plain, err := client.CarriedRepositories(ctx, dir)
	if err != nil {
		return nil, err
	}
	origin := map[string]string{}
	for _, name := range carried {
		repo, err := client.OpenCarried(dir, name, registry.Carried{})
		if err != nil {
			return nil, err
		}
		as := name
		if !o.HostPaths {
			_, as, _ = strings.Cut(name, "/")
		}
		if other := origin[as]; other != "" {
			err := fmt.Errorf("%s: %s and %s have the same path: %w", dir, other, name, fault.ErrConflict)
			return nil, fault.WithHint(err, "serve them with --host-paths, and set server = \"https://ADDRESS/v2/HOST\" and override_path = true in hosts.toml")
		}
		origin[as], s.served[as] = name, repo
	}
	if plain {
		full, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		repo, err := client.OpenNamed(registry.Reference{Scheme: registry.SchemeLayout, Repository: dir})
		if err != nil {
			return nil, err
		}
		s.served[strings.ToLower(filepath.Base(full))] = repo
	}
	for name, repo := range s.served {
		tags, err := repo.Tags(ctx)
		if err != nil {
			return nil, err
		}
		s.Tags += len(tags)
		s.Repositories = append(s.Repositories, name)
	}
	if len(s.served) == 0 {
		return nil, fmt.Errorf("%s: its index.json has no tags: %w", dir, fault.ErrNotFound)
	}
	slices.Sort(s.Repositories)
	s.Handler = readOnly(ociserver.New(&ociregistry.Funcs{
		GetManifest_: s.getManifest, GetTag_: s.getTag, ResolveManifest_: s.resolveManifest, ResolveTag_: s.resolveTag,
		GetBlob_: s.getBlob, GetBlobRange_: s.getRange, ResolveBlob_: s.resolveBlob,
		Repositories_: s.repositories, Tags_: s.tags, Referrers_: s.referrers,
	}, nil))
	return s, nil
}

// readOnly rejects all requests that would write.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this registry is read-only", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// repository finds the repository that is served under a name.
func (s *Server) repository(name string) (*registry.Repository, error) {
	if r := s.served[name]; r != nil {
		return r, nil
	}
	return nil, ociregistry.ErrNameUnknown
}

// failed is the error that a client gets; the reason is only logged, because it names files of this machine. Damaged content counts as
// missing, so that clients use the next registry of their list.
func (s *Server) failed(err, unknown error, repo, target string) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fault.ErrNotFound):
		s.log.Error("not served", "repository", repo, "target", target, "error", err)
	}
	return unknown
}

func (s *Server) manifest(ctx context.Context, name, target string) (ociregistry.BlobReader, error) {
	repo, err := s.repository(name)
	if err != nil {
		return nil, err
	}
	d := digest.Digest(target)
	if d.Validate() != nil {
		desc, err := repo.Resolve(ctx, target)
		if err != nil {
			return nil, s.failed(err, ociregistry.ErrManifestUnknown, name, target)
		}
		d = desc.Digest
	}
	desc, data, err := repo.ManifestLimit(ctx, d, registry.MaxForeignManifest)
	if err != nil {
		return nil, s.failed(err, ociregistry.ErrManifestUnknown, name, target)
	}
	return ocimem.NewBytesReader(data, desc), nil
}

func (s *Server) getManifest(ctx context.Context, repo string, d digest.Digest) (ociregistry.BlobReader, error) {
	return s.manifest(ctx, repo, d.String())
}

func (s *Server) getTag(ctx context.Context, repo, tag string) (ociregistry.BlobReader, error) {
	return s.manifest(ctx, repo, tag)
}

func (s *Server) resolveManifest(ctx context.Context, repo string, d digest.Digest) (ocispec.Descriptor, error) {
	return s.resolveTag(ctx, repo, d.String())
}

func (s *Server) resolveTag(ctx context.Context, repo, tag string) (ocispec.Descriptor, error) {
	m, err := s.manifest(ctx, repo, tag)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return m.Descriptor(), nil
}

func (s *Server) blob(name string, d digest.Digest) (*blob, error) {
	if _, err := s.repository(name); err != nil {
		return nil, err
	}
	b, err := s.files.open(d)
	if err != nil {
		return nil, s.failed(err, ociregistry.ErrBlobUnknown, name, d.String())
	}
	b.file = told{b.file, func(err error) { // the client's connection is closed
		s.log.Error("not served to its end", "repository", name, "target", d.String(), "error", err)
	}}
	return b, nil
}

// getBlob returns a reader that ends with an error, before the last byte, if the digest does not match.
func (s *Server) getBlob(_ context.Context, repo string, d digest.Digest) (ociregistry.BlobReader, error) {
	b, err := s.blob(repo, d)
	if err != nil {
		return nil, err
	}
	b.check(func(err error) {
		s.log.Error("a damaged blob is not served any more", "repository", repo, "digest", d.String(), "error", err)
	})
	return b, nil
}

// getRange returns a part of a blob, which cannot be checked.
func (s *Server) getRange(_ context.Context, repo string, d digest.Digest, from, to int64) (ociregistry.BlobReader, error) {
	b, err := s.blob(repo, d)
	if err != nil {
		return nil, err
	}
	if err := b.part(from, to); err != nil {
		return nil, errors.Join(s.failed(err, ociregistry.ErrRangeInvalid, repo, d.String()), b.Close())
	}
	return b, nil
}

func (s *Server) resolveBlob(_ context.Context, repo string, d digest.Digest) (ocispec.Descriptor, error) {
	b, err := s.blob(repo, d)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return b.Descriptor(), b.Close()
}

func (s *Server) repositories(_ context.Context, after string) iter.Seq2[string, error] {
	return listed(s.Repositories, after)
}

// listed returns the names after a given one, sorted.
func listed(all []string, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, name := range all {
			if name > after && !yield(name, nil) {
				return
			}
		}
	}
}

func (s *Server) tags(ctx context.Context, name, after string) iter.Seq2[string, error] {
	repo, err := s.repository(name)
	if err != nil {
		return ociregistry.ErrorSeq[string](err)
	}
	all, err := repo.Tags(ctx)
	if err != nil {
		return ociregistry.ErrorSeq[string](s.failed(err, ociregistry.ErrNameUnknown, name, "tags"))
	}
	return listed(all, after)
}

func (s *Server) referrers(ctx context.Context, name string, d digest.Digest, artifactType string) iter.Seq2[ocispec.Descriptor, error] {
	repo, err := s.repository(name)
	if err != nil {
		return ociregistry.ErrorSeq[ocispec.Descriptor](err)
	}
	all, err := repo.Referrers(ctx, ocispec.Descriptor{Digest: d})
	if err != nil {
		return ociregistry.ErrorSeq[ocispec.Descriptor](s.failed(err, ociregistry.ErrManifestUnknown, name, d.String()))
	}
	return func(yield func(ocispec.Descriptor, error) bool) {
		for _, r := range all {
			if (artifactType == "" || r.ArtifactType == artifactType) && !yield(r, nil) {
				return
			}
		}
	}
}
