package testenv

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one entry of an image layer. Exactly one of Data, From and Link may be set; a Path that ends in "/" is a folder.
type File struct {
	Path string      // in the image, without leading slash
	Mode fs.FileMode // permission bits with fs.ModeSticky; 0: 0755 for folders, else 0644
	Data []byte
	From string // file on this machine
	Link string // target of a symbolic link
	UID  int    // owner and group
}

// Pushed is an image in a registry.
type Pushed struct {
	Repository string // host and path
	Tag        string
	Digest     string // of the manifest, or of the index
	MediaType  string
}

// Reference is by digest: what it names never changes.
func (p Pushed) Reference() string { return p.Repository + "@" + p.Digest }

// Tagged is the reference by tag.
func (p Pushed) Tagged() string { return p.Repository + ":" + p.Tag }

// BuildImage makes an OCI image for a platform such as "linux/arm64" from layers of files. Same files, same digest.
func BuildImage(platform string, config v1.Config, layers ...[]File) (v1.Image, error) {
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	file := &v1.ConfigFile{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Config: config, RootFS: v1.RootFS{Type: "layers"}}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, err
	}
	return AppendLayers(img, layers...)
}

// AppendLayers adds layers of files to an image.
func AppendLayers(img v1.Image, layers ...[]File) (v1.Image, error) {
	for _, files := range layers {
		data, err := tarFiles(files)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// tarFiles writes a reproducible archive: sorted, without times, with the folders above each file.
func tarFiles(files []File) ([]byte, error) {
	files = slices.Clone(files)
	have := map[string]bool{".": true}
	for _, f := range files {
		have[path.Clean(f.Path)] = true
	}
	for _, f := range files {
		for dir := path.Dir(path.Clean(f.Path)); !have[dir]; dir = path.Dir(dir) {
			have[dir] = true
			files = append(files, File{Path: dir + "/"})
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(path.Clean(a.Path), path.Clean(b.Path)) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Typeflag: tar.TypeReg, Mode: 0o644, Uid: f.UID, Gid: f.UID, Format: tar.FormatPAX}
		data := f.Data
		switch {
		case strings.HasSuffix(f.Path, "/"):
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		case f.From != "":
			var err error
			if data, err = os.ReadFile(f.From); err != nil {
				return nil, err
			}
		}
		if f.Mode != 0 {
			h.Mode = int64(f.Mode.Perm())
			if f.Mode&fs.ModeSticky != 0 {
				h.Mode |= 0o1000
			}
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Push puts an image under a repository and tag ("plant/web:1") on this registry; several images, one for each platform,
// become an index.
func (s *RegistryServer) Push(ctx context.Context, repositoryAndTag string, images ...v1.Image) (Pushed, error) {
	tag, err := name.NewTag(s.Reference(repositoryAndTag))
	if err != nil {
		return Pushed{}, err
	}
	c := s.Client()
	defer c.CloseIdleConnections()
	opts := []remote.Option{remote.WithContext(ctx), remote.WithTransport(c.Transport)}
	if s.Username != "" {
		opts = append(opts, remote.WithAuth(&authn.Basic{Username: s.Username, Password: s.Password}))
	}
	var pushed partial.Describable
	if len(images) == 1 {
		pushed, err = images[0], remote.Write(tag, images[0], opts...)
	} else {
		var index v1.ImageIndex
		if index, err = imageIndex(images); err == nil {
			pushed, err = index, remote.WriteIndex(tag, index, opts...)
		}
	}
	if err != nil {
		return Pushed{}, fmt.Errorf("push %s: %w", tag, err)
	}
	digest, err := pushed.Digest()
	if err != nil {
		return Pushed{}, err
	}
	mediaType, err := pushed.MediaType()
	return Pushed{tag.Context().Name(), tag.TagStr(), digest.String(), string(mediaType)}, err
}

// emptyIndex is what images are added to.
func emptyIndex() v1.ImageIndex { return mutate.IndexMediaType(empty.Index, types.OCIImageIndex) }

func imageIndex(images []v1.Image) (v1.ImageIndex, error) {
	index := emptyIndex()
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return index, nil
}

// Image pushes software that [SoftwareImage] knows, for this machine's platform, to a registry of a test.
func Image(t testing.TB, s *RegistryServer, repositoryAndTag, software string) Pushed {
	t.Helper()
	img, err := SoftwareImage(t.Context(), os.Stderr, software, HostPlatform())
	if err != nil {
		Unavailable(t, "%v", err)
	}
	pushed, err := s.Push(t.Context(), repositoryAndTag, img)
	if err != nil {
		t.Fatal(err)
	}
	return pushed
}
