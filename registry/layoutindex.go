package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// heldNames is the smallest number of new names for which a held index is written.
const heldNames = 64

// HoldIndex delays the writes of a layout's index.json until save is called, because each one writes all names: in between it is written
// when a fifth of the names is new. After a kill the content of the lost names exists, and they can be set again without sending it.
func (c *Client) HoldIndex(path string) (save func() error, err error) {
	layout, err := c.OpenNamed(Reference{Scheme: SchemeLayout, Repository: path})
	if err != nil {
		return nil, err
	}
	p := layout.place.(*layoutPlace)
	hold := func(on bool) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held = on; on || p.unsaved == 0 {
			return nil
		}
		defer p.remember()
		return layout.fail("write the index of", "", onDisk(p.saveIndex()))
	}
	return func() error { return hold(false) }, hold(true)
}

// setName records in the index that a name, or the digest itself, stands for a manifest. The caller holds p.mu.
func (p *layoutPlace) setName(name string, desc ocispec.Descriptor) error {
	if p.entries == nil {
		if err := p.readIndex(); err != nil {
			return err
		}
	}
	if was, known := p.entries[name]; known && was.Digest == desc.Digest && p.unsaved == 0 {
		return nil
	}
	p.enter(name, desc)
	if p.unsaved++; p.held && p.unsaved < max(heldNames, len(p.entries)/5) {
		return nil
	}
	return p.saveIndex()
}

// enter gives a name to a manifest. The one that had it stays, without this name.
func (p *layoutPlace) enter(name string, desc ocispec.Descriptor) {
	if was, known := p.entries[name]; known {
		was.Annotations = maps.Clone(was.Annotations)
		delete(was.Annotations, ocispec.AnnotationRefName)
		p.entries[was.Digest.String()] = was
	}
	p.entries[name] = desc
}

// readIndex reads the entries of index.json by their names.
func (p *layoutPlace) readIndex() error {
	data, err := os.ReadFile(filepath.Join(p.path, ocispec.ImageIndexFile)) // open has checked its kind and size
	if err != nil {
		return err
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return fmt.Errorf("%s: %w: %w", ocispec.ImageIndexFile, fault.ErrInvalid, err)
	}
	p.entries = make(map[string]ocispec.Descriptor, len(index.Manifests))
	for _, d := range index.Manifests {
		name := d.Annotations[ocispec.AnnotationRefName]
		if name == "" {
			name = d.Digest.String()
		}
		p.enter(name, d) // docker save gives several images one name
	}
	return nil
}

// saveIndex writes index.json. oras-go writes it in place: after a power cut or on a full disk it would be cut off.
func (p *layoutPlace) saveIndex() error {
	tagged := map[digest.Digest]bool{}
	for name, d := range p.entries {
		tagged[d.Digest] = tagged[d.Digest] || name != d.Digest.String()
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{}}
	for _, name := range slices.Sorted(maps.Keys(p.entries)) {
		d := p.entries[name]
		if name != d.Digest.String() {
			annotations := map[string]string{}
			maps.Copy(annotations, d.Annotations)
			annotations[ocispec.AnnotationRefName] = name
			d.Annotations = annotations
		} else if tagged[d.Digest] {
			continue
		}
		index.Manifests = append(index.Manifests, d)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	part := filepath.Join(p.path, ingestFolder, ocispec.ImageIndexFile)
	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(part); err != nil { // of an interrupted write, or a link that was put on the media
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err := finish(f, filepath.Join(p.path, ocispec.ImageIndexFile), data, true); err != nil {
		return err
	}
	p.unsaved = 0
	return nil
}
