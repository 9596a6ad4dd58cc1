package features

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// The oldest versions that Longshore supports: Debian 12's containerd, and the kernel of the oldest long-term line that is still
// installed on devices. Older ones are untested.
const (
	MinContainerd = "1.6"
	MinKernel     = "5.4"
)

// recentDaemon rejects a containerd that is certainly too old; an unreadable version is accepted.
func recentDaemon(version string) error {
	if !older(version, MinContainerd) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("containerd is %s, the oldest supported version is %s: %w", version, MinContainerd, fault.ErrUnfit),
		"install containerd 2 or newer, or your distribution's if it is recent enough")
}

// RecentKernel returns fault.ErrUnfit for a kernel that is certainly too old.
func RecentKernel() error {
	release, err := kernel()
	if err != nil {
		return err
	}
	return recentRelease(release)
}

// KernelAtLeast compares the running kernel with "major.minor".
func KernelAtLeast(want string) (bool, error) {
	release, err := kernel()
	return !older(release, want), err
}

func kernel() (release string, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("ask for the kernel's version: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

func recentRelease(release string) error {
	if !older(release, MinKernel) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("the kernel is %s, the oldest supported version is %s: %w", release, MinKernel, fault.ErrUnfit),
		"update the device's operating system")
}

// older compares major and minor of a version like "v1.7.35" or "5.10.0-27-arm64". False when they cannot be read.
func older(version, than string) bool {
	a, ok := majorMinor(version)
	b, _ := majorMinor(than)
	return ok && slices.Compare(a, b) < 0
}

func majorMinor(version string) (v []int, ok bool) {
	v = make([]int, 2)
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &v[0], &v[1])
	return v, err == nil
}
