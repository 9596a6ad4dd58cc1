package compose

import (
	"context"
	"io/fs"

	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Packed is a packed project and what [Check] says of it.
type Packed struct {
	*composefile.Packed
	Notices []strict.Fault
}

// Pack packs a project and checks it, as longshore component push does.
func Pack(ctx context.Context, dir string, fsys fs.FS, names ...string) (*Packed, error) {
	p, err := composefile.Pack(dir, fsys, names...)
	if err != nil {
		return nil, err
	}
	notices, err := Check(ctx, p.Project, p.Files)
	if err != nil {
		return nil, err
	}
	return &Packed{p, notices}, nil
}

// CheckFile is [Check] of a file that is not packed.
func CheckFile(ctx context.Context, file string, data []byte, files fs.FS) ([]strict.Fault, error) {
	p, err := composefile.Parse(file, data)
	if err != nil {
		return nil, err
	}
	return Check(ctx, p, files)
}

// Images is [composefile.Project.Images] of a file that is not packed.
func Images(file string, data []byte, env map[string]string) ([]string, error) {
	p, err := composefile.Parse(file, data)
	if err != nil {
		return nil, err
	}
	return p.Images(env)
}
