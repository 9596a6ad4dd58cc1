package users

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxAccounts bounds what is read of a container's /etc/passwd and /etc/group.
const maxAccounts = 1 << 20

// LookUp finds a user, "uid[:gid]" or names, in /etc/passwd and /etc/group below root. fault.ErrInvalid: there is no such user.
func LookUp(root, spec string) (specs.User, error) {
	passwd, err := accounts(root, "etc/passwd")
	if err != nil {
		return specs.User{}, err
	}
	defer passwd.Close()
	group, err := accounts(root, "etc/group")
	if err != nil {
		return specs.User{}, err
	}
	defer group.Close()
	u, err := user.GetExecUser(spec, nil, io.LimitReader(passwd, maxAccounts), io.LimitReader(group, maxAccounts))
	if err != nil {
		return specs.User{}, fmt.Errorf("user %q: %w", spec, failure.As(fault.ErrInvalid, err))
	}
	out := specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid), AdditionalGids: []uint32{uint32(u.Gid)}}
	for _, g := range u.Sgids {
		if g != u.Gid {
			out.AdditionalGids = append(out.AdditionalGids, uint32(g))
		}
	}
	return out, nil
}

// accounts opens one of a container's files; a missing one is empty. Links must not lead out of root.
func accounts(root, name string) (io.ReadCloser, error) {
	f, err := openIn(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the container's %s: %w", name, err)
	}
	return f, nil
}

func openIn(root, name string) (*os.File, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe in its place must not block
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is not a file: %w", fault.ErrInvalid)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
