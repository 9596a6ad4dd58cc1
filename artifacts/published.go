package artifacts

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What docker compose publish writes: one image manifest, a layer for each file.
const (
	publishedProject = "application/vnd.docker.compose.project"
	publishedConfig  = "application/vnd.docker.compose.config.empty.v1+json" // in place of an artifact type, for OCI 1.0
	publishedFile    = "application/vnd.docker.compose.file+yaml"
	publishedEnv     = "application/vnd.docker.compose.envfile"

	publishedFileName = "com.docker.compose.file"
	publishedEnvName  = "com.docker.compose.envfile"
	publishedExtends  = "com.docker.compose.extends" // there: a file that others extend, none that is laid over others
)

// Limits on a published project. Its files are YAML that people wrote.
const (
	MaxPublished       = 4 << 20 // bytes of the manifest, which holds every layer once more
	maxPublishedLayers = 128
	maxPublishedFile   = 1 << 20  // bytes of one file
	maxPublishedFiles  = 16 << 20 // bytes of all of them
)

// Published is a project as docker compose publish pushes it.
type Published struct {
	name   string
	layers []ocispec.Descriptor
}

// OpenPublished reads the manifest of a published project. name names it in messages.
func OpenPublished(name string, manifest []byte) (*Published, error) {
	if len(manifest) > MaxPublished {
		return nil, fmt.Errorf("%s: manifest has more than %d bytes: %w", name, MaxPublished, fault.ErrTooLarge)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("%s: read manifest: %w: %w", name, fault.ErrInvalid, err)
	}
	if m.ArtifactType != publishedProject && (m.ArtifactType != "" || m.Config.MediaType != publishedConfig) {
		err := fmt.Errorf("%s: not a project that docker compose publish has made: %w", name, fault.ErrUnsupported)
		return nil, fault.WithHint(err, "name a directory with compose.yaml, or what docker compose publish has pushed")
	}
	if len(m.Layers) > maxPublishedLayers {
		return nil, fmt.Errorf("%s: more than %d files: %w", name, maxPublishedLayers, fault.ErrTooLarge)
	}
	for i, l := range m.Layers {
		if err := l.Digest.Validate(); err != nil {
			return nil, fmt.Errorf("%s: layer %d: %w: %w", name, i+1, fault.ErrInvalid, err)
		}
		if l.Size < 0 || l.Size > maxPublishedFile {
			return nil, fmt.Errorf("%s: layer %d has %d bytes: %w", name, i+1, l.Size, fault.ErrTooLarge)
		}
		if l.MediaType != publishedFile && l.MediaType != publishedEnv {
			return nil, fmt.Errorf("%s: layer %d is of type %.60s: %w", name, i+1, l.MediaType, fault.ErrUnsupported)
		}
	}
	return &Published{name: name, layers: m.Layers}, nil
}

// Files are those of a published project, and the names of the Compose files that are laid over each other, in the order of
// their layers; the one that pins images to digests is the last. blob fetches a layer and must check its digest.
func (p *Published) Files(blob func(ocispec.Descriptor) ([]byte, error)) (files fs.FS, compose []string, err error) {
	content := map[string][]byte{}
	total := 0
	for i, l := range p.layers {
		data, err := blob(l)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: layer %d: %w", p.name, i+1, err)
		}
		if total += len(data); total > maxPublishedFiles {
			return nil, nil, fmt.Errorf("%s: files of more than %d bytes: %w", p.name, maxPublishedFiles, fault.ErrTooLarge)
		}
		name, layered, err := p.layerName(i, l, content)
		if err != nil {
			return nil, nil, err
		}
		content[name] = data
		if layered {
			compose = append(compose, name)
		}
	}
	if len(compose) == 0 {
		return nil, nil, fmt.Errorf("%s: there is no Compose file in it: %w", p.name, fault.ErrInvalid)
	}
	return Files(content), compose, nil
}

// layerName is the path of a layer's file, and whether it is laid over others.
func (p *Published) layerName(i int, l ocispec.Descriptor, taken map[string][]byte) (name string, layered bool, err error) {
	_, extended := l.Annotations[publishedExtends]
	key := publishedFileName
	if l.MediaType == publishedEnv {
		key = publishedEnvName
	} else {
		layered = !extended
	}
	name = l.Annotations[key]
	if name == "" && layered {
		name = ComposeFile
	}
	if !fs.ValidPath(name) || name != path.Base(name) || name == "." {
		return "", false, fmt.Errorf("%s: layer %d: %.60q is no name of a file: %w", p.name, i+1, name, fault.ErrInvalid)
	}
	_, there := taken[name]
	switch {
	case there && layered: // two files of one name, of different directories
		name = fmt.Sprintf("%d-%s", i+1, name)
		_, there = taken[name]
	case !layered && name == ComposeFile:
		there = true
	}
	if there {
		return "", false, fmt.Errorf("%s: layer %d: %.60s is there twice: %w", p.name, i+1, name, fault.ErrInvalid)
	}
	return name, layered, nil
}
