package fleet

import (
	"io/fs"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Structure tells what is wrong with fleet.yaml by itself.
func Structure(fsys fs.FS) []strict.Fault {
	return readFile(fsys, File, &Fleet{}).faults
}
