package users

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxAccounts bounds what is read of a container's /etc/passwd and /etc/group.
const maxAccounts = 1 << 20

// LookUp finds a user, "uid[:gid]" or names, in /etc/passwd and /etc/group below root, and more groups of the process, names or numbers. A user
// without a group has the groups of /etc/group, as with Docker. fault.ErrInvalid: there is no such user or group.
func LookUp(root, spec string, groups []string) (specs.User, error) {
	passwd, err := accounts(root, "etc/passwd")
	if err != nil {
		return specs.User{}, err
	}
	group, err := accounts(root, "etc/group")
	if err != nil {
		return specs.User{}, err
	}
	u, err := user.GetExecUser(spec, nil, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return specs.User{}, fault.WithHint(fmt.Errorf("user %q is not in the image: %w", spec, failure.As(fault.ErrInvalid, err)),
			"name a user that the image's /etc/passwd has, or give the number")
	}
	more, err := user.GetAdditionalGroups(groups, bytes.NewReader(group))
	if err != nil {
		return specs.User{}, fault.WithHint(fmt.Errorf("groups %q are not in the image: %w", groups, failure.As(fault.ErrInvalid, err)),
			"name groups that the image's /etc/group has, or give numbers")
	}
	out := specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid), AdditionalGids: []uint32{uint32(u.Gid)}}
	for _, g := range slices.Concat(u.Sgids, more) {
		if !slices.Contains(out.AdditionalGids, uint32(g)) {
			out.AdditionalGids = append(out.AdditionalGids, uint32(g))
		}
	}
	return out, nil
}

// accounts reads one of a container's files; a missing one is empty.
func accounts(root, name string) ([]byte, error) {
	f, err := openIn(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var data []byte
	if err == nil {
		defer f.Close()
		data, err = bounded.Read(f, maxAccounts)
	}
	if err != nil {
		return nil, fmt.Errorf("read the container's %s: %w", name, err)
	}
	return data, nil
}

// openIn opens a file below root. Links lead from there, as in a container: in images of Nix they are absolute.
func openIn(root, name string) (*os.File, error) {
	place, err := pathrs.OpenInRoot(root, name)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	info, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block
		return nil, fmt.Errorf("it is not a file: %w", fault.ErrInvalid)
	}
	return pathrs.Reopen(place, unix.O_RDONLY)
}
