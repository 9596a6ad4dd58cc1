// Package apparmor loads containerd's default AppArmor profile. Only the program apparmor_parser can compile a profile. This package runs
// it itself, because containerd's function has no context: if the program hangs, its caller hangs too.
package apparmor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	hostapparmor "github.com/containerd/containerd/v2/pkg/apparmor"
)

// loadedProfiles lists the kernel's profiles, one a line: "name (mode)".
const loadedProfiles = "/sys/kernel/security/apparmor/profiles"

// Load loads containerd's default profile under a name, unless a profile of that name is loaded. It reports whether the device has
// AppArmor; without it there is no error. apparmor_parser is killed when ctx ends.
func Load(ctx context.Context, name string) (supported bool, err error) {
	if !hostapparmor.HostSupports() {
		return false, nil
	}
	mode, err := Mode(name)
	if err != nil || mode != "" {
		return true, err
	}
	text, err := apparmor.DumpDefaultProfile(name)
	if err != nil {
		return true, fmt.Errorf("write AppArmor's default profile: %w", err)
	}
	return true, parse(ctx, text)
}

// Mode is the mode of a profile in the kernel, such as "enforce"; "": it is not loaded.
func Mode(name string) (string, error) {
	list, err := os.Open(loadedProfiles)
	if err != nil {
		return "", fmt.Errorf("read AppArmor's profiles: %w", err)
	}
	defer list.Close()
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if n, mode, _ := strings.Cut(lines.Text(), " ("); n == name {
			return strings.TrimSuffix(mode, ")"), nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read AppArmor's profiles: %w", err)
	}
	return "", nil
}

// parse loads a profile into the kernel.
func parse(ctx context.Context, text string) error {
	parser := exec.CommandContext(ctx, "apparmor_parser", "-Kr") // read standard input, skip the cache, replace a loaded profile
	parser.Stdin, parser.WaitDelay = strings.NewReader(text), time.Second
	out, err := parser.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("apparmor_parser: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
