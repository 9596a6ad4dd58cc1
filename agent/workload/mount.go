package workload

import (
	"strings"

	"github.com/opencontainers/go-digest"
)

// Volume is a named volume. It outlives containers, updates and the removal of its project.
type Volume struct {
	Name     string // Compose key, unique in the project
	Labels   map[string]string
	Shared   string            `json:",omitzero"`  // name on the device, for every project that names it; "": the project's own
	External bool              `json:",omitzero"`  // Shared must be there already
	Options  map[string]string `json:",omitempty"` // of the local driver: "type", "o", "device", as for mount(8)
}

// MountKind is the kind of a mount.
type MountKind string

// Kinds of mounts.
const (
	MountVolume MountKind = "volume" // Source is Volume.Name; "" is a volume of the replica's and target's own, which goes with the project
	MountBind   MountKind = "bind"   // Source is an absolute path on the host
	MountTmpfs  MountKind = "tmpfs"
	MountImage  MountKind = "image" // Image's files, read-only
)

// Mount is a mount at Target in the container.
type Mount struct {
	Kind        MountKind
	Source      string
	Target      string
	ReadOnly    bool
	Create      bool     // bind: make the host directory when it is missing
	TmpfsMax    int64    // tmpfs: bytes, 0: no limit of its own
	TmpfsPerm   uint32   // tmpfs: mode bits, 0: 1777
	Image       *Image   `json:",omitempty"` // image
	Subpath     string   `json:",omitzero"`  // volume and image: this directory of it, relative and clean
	NoCopy      bool     `json:",omitzero"`  // volume: a new one stays empty
	Propagation string   `json:",omitzero"`  // bind: "shared", "rslave", …; "": "rprivate"
	Recursive   string   `json:",omitzero"`  // bind: "disabled": not what is mounted below it; "readonly": read-only below it too; "": with what is below, writable there
	Options     []string `json:",omitempty"` // tmpfs: further mount options, sorted
	At          int      `json:"-"`          // its place in the list of the Compose file, for messages
}

// NamesSocket reports whether a path is that of a socket, by its name. When it is missing, no directory is created: it would keep a
// program from creating the socket.
func NamesSocket(source string) bool {
	return strings.HasSuffix(source, ".sock") || strings.HasSuffix(source, ".socket")
}

// File is a file that the agent mounts into a container from memory: a config, a secret, or one of the archive that is mounted
// read-only.
type File struct {
	Name    string // Compose key, for people; of a mount its path in the archive, which begins with "./"
	Secret  bool   `json:",omitzero"`
	Target  string // absolute path in the container
	UID     uint32 `json:",omitzero"`
	GID     uint32 `json:",omitzero"`
	Mode    uint32 `json:",omitzero"` // 0: 0444
	Path    string `json:",omitzero"` // "": Target is the file; else Target is a directory of files that follow each other, and this the place in it
	Digest  digest.Digest
	Content []byte `json:"-"` // never in a record
}

// Mounted reports whether the file is one of the archive that a service mounts, and no config or secret.
func (f File) Mounted() bool { return strings.HasPrefix(f.Name, "./") }
