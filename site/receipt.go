package site

import (
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
)

// ReceiptFile is the name of a receipt on the media of its export.
const ReceiptFile = "receipt.json"

// Receipt is a site's record of an imported export. Only a signature proves its origin.
type Receipt struct {
	Version     int           `json:"version"`     // 1
	Export      digest.Digest `json:"export"`      // of the export's document, [ExportFile]
	States      string        `json:"states"`      // repository, "host/path", by its name at the source
	Destination string        `json:"destination"` // the site's registry
	Site        string        `json:"site,omitempty"`
	Time        string        `json:"time"`    // of the end of the import, RFC 3339 in UTC
	Program     string        `json:"program"` // that imported, with its version
	Devices     []Delivered   `json:"devices"` // sorted by tag
	Manifests   int           `json:"manifests"`
	Bytes       int64         `json:"bytes"` // of the sent blobs, without those that the site had
}

// Delivered is the state that a device's tag names at the site.
type Delivered struct {
	Tag        string        `json:"tag"`
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
	Moved      bool          `json:"moved"` // by this import
}

// Receipt describes an import: closure is of the media, and was mirrored.
func (m *Media) Receipt(c *Closure, made *Mirrored) *Receipt {
	r := &Receipt{
		Version: documentVersion, Export: m.digest, States: m.States, Site: m.Site, Manifests: made.Manifests, Bytes: made.Bytes, Devices: []Delivered{},
	}
	for _, n := range c.Needs {
		if n.Kind == artifacts.KindState && n.current != "" {
			_, moved := slices.BinarySearch(made.Devices, n.current)
			r.Devices = append(r.Devices, Delivered{n.current, n.number, n.Digest, moved})
		}
	}
	slices.SortFunc(r.Devices, func(a, b Delivered) int { return strings.Compare(a.Tag, b.Tag) })
	return r
}
