package testenv

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// InstallDebian installs the packages that are not installed yet, saying so on out before it does. It needs root and
// Debian's tools; without them the error says what to install by hand.
func InstallDebian(ctx context.Context, out io.Writer, packages ...string) error {
	var missing []string
	for _, p := range packages {
		if !debianInstalled(ctx, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("install %s: needs root and apt-get; install what corresponds to these Debian packages by hand",
			strings.Join(missing, " "))
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "apt.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Fprintf(out, "testenv: installing Debian packages on this machine: %s\n", strings.Join(missing, " "))
	return aptUpdated(ctx, "", append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
}

func debianInstalled(ctx context.Context, name string) bool {
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", name).Output()
	return err == nil && string(out) == "installed"
}

// aptUpdated is apt, which is run again with new lists of packages if it fails.
func aptUpdated(ctx context.Context, dir string, args ...string) error {
	if apt(ctx, dir, args...) == nil {
		return nil
	}
	if err := apt(ctx, "", "update", "-q"); err != nil {
		return err
	}
	return apt(ctx, dir, args...)
}

// apt runs apt-get in dir ("": here) without questions.
func apt(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, tail(text, 20))
	}
	return nil
}
