package artifacts

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// ComposeFile is the one name that a Compose Archive's project file may have.
const ComposeFile = "compose.yaml"

// Archive is a Compose Archive that is safe to use, held in memory.
type Archive struct {
	Root    string // name of the one top-level directory
	FS      fs.FS  // content of that directory, read only; links are copies, modes are 0644, 0755
	Compose []byte // compose.yaml
	Lock    *Lock  // nil: there is no longshore.lock
}

// ReadArchive unpacks a Compose Archive into memory. data must have been checked against its digest. It refuses what would
// not be safe to extract: names that leave the directory, devices, links out, entries that are there twice, more than
// [MaxEntries] entries or [MaxUnpacked] bytes.
func ReadArchive(data []byte) (*Archive, error) {
	entries, err := readTarball(data)
	if err != nil {
		return nil, fmt.Errorf("read Compose Archive: %w", err)
	}
	a := &Archive{}
	inside := entries[:0:0]
	for _, e := range entries {
		top, rest, nested := strings.Cut(e.name, "/")
		if !nested && !e.dir {
			return nil, fmt.Errorf("read Compose Archive: %q is not in a directory; there must be exactly one at the top, with everything in it: %w", e.name, fault.ErrInvalid)
		}
		if a.Root != "" && top != a.Root {
			return nil, fmt.Errorf("read Compose Archive: %q and %q at the top; exactly one directory must be there: %w", a.Root, top, fault.ErrInvalid)
		}
		a.Root = top
		if nested {
			e.name = rest
			inside = append(inside, e)
		}
	}
	if a.Root == "" {
		return nil, fmt.Errorf("read Compose Archive: it is empty: %w", fault.ErrInvalid)
	}
	tree := newMemory(inside)
	a.FS = tree
	if a.Compose, err = composeFile(tree); err != nil {
		return nil, fmt.Errorf("read Compose Archive: %w", err)
	}
	if f := tree[LockFile]; f != nil {
		if a.Lock, err = ParseLock(LockFile, f.data); err != nil {
			return nil, fmt.Errorf("read Compose Archive: %w", err)
		}
	}
	return a, nil
}

func composeFile(tree memory) ([]byte, error) {
	f := tree[ComposeFile]
	if f == nil {
		err := fmt.Errorf("there is no %s: %w", ComposeFile, fault.ErrInvalid)
		for _, other := range []string{"compose.yml", "docker-compose.yaml", "docker-compose.yml"} {
			if tree[other] != nil {
				return nil, fault.WithHint(err, "rename "+other+" to "+ComposeFile)
			}
		}
		return nil, err
	}
	if f.IsDir() {
		return nil, fmt.Errorf("%s is a directory: %w", ComposeFile, fault.ErrInvalid)
	}
	if len(f.data) > strict.MaxYAML {
		return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", ComposeFile, len(f.data), strict.MaxYAML, fault.ErrTooLarge)
	}
	return f.data, nil
}
