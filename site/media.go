package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// ExportFile, beside the OCI layout of an export, says what it is for. It is written last: an export without it is not whole.
const ExportFile = "longshore-export.json"

const (
	documentVersion = 1
	maxExport       = 1 << 20
)

// Inventory is what a site has of the needs of its devices.
type Inventory struct {
	Version int    `json:"version"` // 1
	States  string `json:"states"`  // repository of the devices' states, "host/path", by its name at the source
	// Content lists manifests and blobs, sorted, by the name of their repository at the source: registries keep what repositories
	// have apart.
	Content map[string][]digest.Digest `json:"content"`
}

// Take lists what a site has for a closure that was found at the site itself: from opens the site's repositories by their
// names at the source.
func Take(ctx context.Context, from Source, states string, c *Closure) (*Inventory, error) {
	var mu sync.Mutex
	i := &Inventory{Version: documentVersion, States: states, Content: map[string][]digest.Digest{}}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, n := range c.Needs {
		g.Go(func() error {
			repo, err := from.OpenName(inner, n.Repository)
			if err != nil {
				return err
			}
			content, err := repo.Content(inner, n.Digest)
			if errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary) {
				return nil // it is carried again
			}
			if err != nil {
				return err
			}
			for _, d := range content {
				there, err := repo.Exists(inner, d)
				if err != nil {
					return err
				}
				if there {
					mu.Lock()
					i.Content[n.Repository] = append(i.Content[n.Repository], d.Digest)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	for name, all := range i.Content {
		slices.Sort(all)
		i.Content[name] = slices.Compact(all)
	}
	return i, nil
}

// MaxInventory bounds an inventory in bytes: that is a million digests.
const MaxInventory = 64 << 20

// ParseInventory reads what Take made. states is the repository that is meant: an inventory for another one is
// fault.ErrConflict.
func ParseInventory(file string, data []byte, states string) (*Inventory, error) {
	i := &Inventory{}
	if err := json.Unmarshal(data, i); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, fault.ErrInvalid, err)
	}
	for name, all := range i.Content {
		for _, d := range all {
			if err := d.Validate(); err != nil {
				return nil, fmt.Errorf("%s: %s: %q: %w: %w", file, name, d, fault.ErrInvalid, err)
			}
		}
	}
	switch {
	case i.Version != documentVersion:
		return nil, fmt.Errorf("%s: version %d: %w: this program knows version %d", file, i.Version, fault.ErrUnsupported, documentVersion)
	case i.States != states:
		return nil, fmt.Errorf("%s is the inventory for %s, not for %s: %w", file, i.States, states, fault.ErrConflict)
	}
	return i, nil
}

// Had is what the site has in a repository; of a nil inventory nothing.
func (i *Inventory) Had(repository string) map[digest.Digest]bool {
	if i == nil {
		return nil
	}
	out := map[digest.Digest]bool{}
	for _, d := range i.Content[repository] {
		out[d] = true
	}
	return out
}

// Export says what an OCI layout carries.
type Export struct {
	Version    int      `json:"version"` // 1
	States     string   `json:"states"`  // repository, "host/path"
	Trust      []string `json:"trust,omitempty"`
	Difference bool     `json:"difference,omitempty"` // it lacks what the site's inventory has
}

// Write ends an export.
func (e Export) Write(dir string) error {
	e.Version = documentVersion
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, ExportFile)
	f, err := os.Create(file + ".part")
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(file+".part", file)
}

// ReadExport reads what Write wrote. fault.ErrNotFound where there is no export, or one that is not whole.
func ReadExport(dir string) (*Export, error) {
	file := filepath.Join(dir, ExportFile)
	data, err := bounded.File(os.Open, file, maxExport)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%s has no %s: it is no export, or one that was not finished: %w", dir, ExportFile, fault.ErrNotFound),
			"run the same longshore export again: it goes on where it stopped")
	}
	if err != nil {
		return nil, err
	}
	e := &Export{}
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, fault.ErrInvalid, err)
	}
	if e.Version != documentVersion {
		return nil, fmt.Errorf("%s: version %d: %w: this program knows version %d", file, e.Version, fault.ErrUnsupported, documentVersion)
	}
	return e, nil
}

// Mapped is a Source that opens the site's repositories by their names at the source.
type Mapped func(ctx context.Context, repository string) (*registry.Repository, error)

// OpenName implements [Source].
func (m Mapped) OpenName(ctx context.Context, name string) (*registry.Repository, error) {
	return m(ctx, name)
}
