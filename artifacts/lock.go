package artifacts

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// LockFile is the name of the lock beside compose.yaml in a Compose Archive.
const LockFile = "longshore.lock"

const lockVersion = 1

// Lock says which images a Compose project's references meant when it was packed.
type Lock struct {
	Images []LockedImage `json:"images"` // each reference once
}

// LockedImage is one reference as written in compose.yaml, resolved.
type LockedImage struct {
	Reference string           `json:"reference"`
	Digest    digest.Digest    `json:"digest"` // of the image index, or of the manifest when there is no index
	Platforms []LockedPlatform `json:"platforms"`
}

// LockedPlatform is one platform of an image.
type LockedPlatform struct {
	Platform string        `json:"platform"` // "linux/arm64", "linux/arm/v7"
	Digest   digest.Digest `json:"digest"`   // of the platform's manifest
	Size     int64         `json:"size"`     // compressed bytes of its layers and config
}

var (
	referenceFormat = strict.Short(`^[!-~]+$`, 1000)
	platformFormat  = strict.Expression(`^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9._-]+)?$`)
)

// Only leaves platforms out that are none of the given ones; without any it keeps all. An error names every image that is
// not for one of them.
func (l *Lock) Only(platforms []string) error {
	if len(platforms) == 0 {
		return nil
	}
	if err := ValidPlatforms(platforms); err != nil {
		return err
	}
	var missing []error
	for i, image := range l.Images {
		var kept []LockedPlatform
		for _, p := range platforms {
			at := slices.IndexFunc(image.Platforms, func(x LockedPlatform) bool { return x.Platform == p || strings.HasPrefix(x.Platform, p+"/") })
			if at < 0 {
				missing = append(missing, fmt.Errorf("image %s is not for %s: %w", image.Reference, p, fault.ErrUnfit))
			} else if !slices.Contains(kept, image.Platforms[at]) {
				kept = append(kept, image.Platforms[at])
			}
		}
		slices.SortFunc(kept, func(a, b LockedPlatform) int { return strings.Compare(a.Platform, b.Platform) })
		l.Images[i].Platforms = kept
	}
	return errors.Join(missing...)
}

// ValidPlatforms refuses what is no platform like "linux/arm64" or "linux/arm/v7".
func ValidPlatforms(all []string) error {
	for _, p := range all {
		if !platformFormat.MatchString(p) {
			return fmt.Errorf("%q is no platform like linux/arm64: %w", p, fault.ErrInvalid)
		}
	}
	return nil
}

// ParseLock reads a longshore.lock (JSON). Every object in it is closed.
func ParseLock(file string, data []byte) (*Lock, error) {
	root, err := strict.JSON(file, data)
	if err != nil {
		return nil, err
	}
	version := root.Need("version")
	if v := version.Uint64(); version.Kind() == strict.Number && v != lockVersion {
		version.HintFaultf("use a newer longshore", "version %d is not known here", v)
	}
	l := &Lock{}
	seen := make(map[string]bool)
	for _, n := range root.Need("images").Items() {
		reference := n.Need("reference")
		i := LockedImage{
			Reference: reference.Matching(referenceFormat, "an image reference"),
			Digest:    margo.ReadDigest(n.Need("digest")),
		}
		if seen[i.Reference] && i.Reference != "" {
			reference.Faultf("the reference %q is there already", i.Reference)
		}
		seen[i.Reference] = true
		platforms := make(map[string]bool)
		for _, pn := range n.Need("platforms").Items() {
			name, size := pn.Need("platform"), pn.Need("size")
			p := LockedPlatform{
				Platform: name.Matching(platformFormat, `a platform like "linux/arm64"`),
				Digest:   margo.ReadDigest(pn.Need("digest")),
				Size:     size.Int64(),
			}
			if p.Size < 0 {
				size.Faultf("must not be negative")
			}
			if platforms[p.Platform] && p.Platform != "" {
				name.Faultf("the platform %q is there already", p.Platform)
			}
			platforms[p.Platform] = true
			pn.Close()
			i.Platforms = append(i.Platforms, p)
		}
		n.Close()
		l.Images = append(l.Images, i)
	}
	root.Close()
	return strict.Result(root, l)
}

// Encode writes the lock: images and platforms sorted, the same bytes for the same content. What ParseLock would refuse
// is an error.
func (l *Lock) Encode() ([]byte, error) {
	doc := struct {
		Version int           `json:"version"`
		Images  []LockedImage `json:"images"`
	}{lockVersion, []LockedImage{}}
	for _, i := range l.Images {
		i.Platforms = append([]LockedPlatform{}, i.Platforms...)
		slices.SortFunc(i.Platforms, func(a, b LockedPlatform) int { return strings.Compare(a.Platform, b.Platform) })
		doc.Images = append(doc.Images, i)
	}
	slices.SortFunc(doc.Images, func(a, b LockedImage) int {
		return cmp.Or(strings.Compare(a.Reference, b.Reference), strings.Compare(a.Digest.String(), b.Digest.String()))
	})
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w: %w", LockFile, fault.ErrInvalid, err)
	}
	data = append(data, '\n')
	if _, err := ParseLock(LockFile, data); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return data, nil
}
