// Package filebundle keeps the signatures and attestations of a file in files beside it, one sigstore bundle each, as
// cosign verify-blob --bundle reads them: FILE.sigstore.json, FILE.attestation.sigstore.json, and with a number where there
// are several.
package filebundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const (
	suffix     = ".sigstore.json"
	maxBundles = 64 // beside one file
)

// Store is the store of one file. It implements signing.Store: the bundles are the referrers of the file's digest.
type Store struct {
	path  string
	blobs map[digest.Digest][]byte // manifests and blobs
}

var _ signing.Store = (*Store)(nil)

// Open reads a regular file to its end and describes it by its digest and size.
func Open(path string) (*Store, ocispec.Descriptor, error) {
	var d ocispec.Descriptor
	f, err := os.Open(path)
	if err != nil {
		return nil, d, err
	}
	defer f.Close()
	digester := digest.SHA256.Digester()
	if d.Size, err = io.Copy(digester.Hash(), f); err != nil {
		return nil, d, err
	}
	d.MediaType, d.Digest = "application/octet-stream", digester.Digest()
	return &Store{path: path, blobs: map[digest.Digest][]byte{}}, d, nil
}

// Name is the file's path.
func (s *Store) Name() string { return s.path }

// Resolve finds nothing: a file has no tags.
func (s *Store) Resolve(_ context.Context, tag string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fmt.Errorf("%s: tag %s: %w", s.path, tag, fault.ErrNotFound)
}

// Referrers lists the bundles beside the file.
func (s *Store) Referrers(_ context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	names, err := Names(s.path)
	if err != nil {
		return nil, err
	}
	var out []ocispec.Descriptor
	for _, name := range names {
		data, err := bounded.File(os.Open, name, signing.MaxStatementBytes)
		if err != nil {
			return nil, err
		}
		manifest, err := json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: signing.MediaTypeBundle,
			Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{s.keep(signing.MediaTypeBundle, data)}, Subject: &subject,
		})
		if err != nil {
			return nil, err
		}
		d := s.keep(ocispec.MediaTypeImageManifest, manifest)
		d.ArtifactType = signing.MediaTypeBundle
		out = append(out, d)
	}
	return out, nil
}

// Names lists the paths of possible bundles of a file, which need not exist, sorted. More than 64 are fault.ErrTooLarge.
func Names(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), base)
		if middle, ends := strings.CutSuffix(middle, suffix); ok && ends && named(middle) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	if len(out) > maxBundles {
		return nil, fmt.Errorf("%s: more than %d bundles beside it: %w", path, maxBundles, fault.ErrTooLarge)
	}
	return out, nil
}

// named reports whether a bundle's name, between that of the file and the suffix, is one that free gives.
func named(middle string) bool {
	middle = strings.TrimPrefix(middle, ".attestation")
	return middle == "" || middle[0] == '.' && strings.Trim(middle[1:], "0123456789") == ""
}

func (s *Store) keep(mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	s.blobs[d.Digest] = data
	return d
}

// Manifest returns a manifest that Referrers has listed.
func (s *Store) Manifest(_ context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, ok := s.blobs[d]
	if !ok {
		return ocispec.Descriptor{}, nil, fmt.Errorf("%s: %s: %w", s.path, d, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, nil
}

// Blob returns a bundle that Referrers has read, or a blob of PushBlob.
func (s *Store) Blob(ctx context.Context, d ocispec.Descriptor, _ int64) ([]byte, error) {
	_, data, err := s.Manifest(ctx, d.Digest)
	return data, err
}

// PushBlob keeps a blob for PushReferrer.
func (s *Store) PushBlob(_ context.Context, d ocispec.Descriptor, data []byte) error {
	s.keep(d.MediaType, data)
	return nil
}

// PushManifest rejects cosign's older format, which needs tags. Errors wrap fault.ErrUnsupported.
func (s *Store) PushManifest(context.Context, ocispec.Descriptor, []byte, string) error {
	return fault.WithHint(fmt.Errorf("%s: %w: a file's signatures are bundles", s.path, fault.ErrUnsupported), "leave out --signature-format")
}

// PushReferrer writes the bundle of a referrer beside the file.
func (s *Store) PushReferrer(_ context.Context, _ ocispec.Descriptor, data []byte) error {
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	i := slices.IndexFunc(m.Layers, func(l ocispec.Descriptor) bool { return l.MediaType == signing.MediaTypeBundle })
	if i < 0 {
		return fmt.Errorf("%s: %w: the referrer holds no bundle", s.path, fault.ErrUnsupported)
	}
	kind := ""
	if m.Annotations[signing.AnnotationPredicateType] != signing.PredicateSign {
		kind = ".attestation"
	}
	return s.write(kind, s.blobs[m.Layers[i].Digest])
}

// write puts a bundle under the first name that is free.
func (s *Store) write(kind string, data []byte) error {
	for n := 1; n <= maxBundles; n++ {
		name := s.path + kind + suffix
		if n > 1 {
			name = fmt.Sprintf("%s%s.%d%s", s.path, kind, n, suffix)
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(append(data, '\n'))
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			err = errors.Join(err, os.Remove(name)) // an incomplete bundle would fail every check
		}
		return err
	}
	return fmt.Errorf("%s: %d bundles are beside it: %w", s.path, maxBundles, fault.ErrTooLarge)
}
