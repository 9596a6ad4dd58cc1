// Package apparmor loads the AppArmor profile of containers, which has the rules of containerd's default profile. Only the program
// apparmor_parser can compile a profile.
//
// containerd's own functions are not used: they have no context, so that a parser that hangs would hang the agent, and they need text/template,
// with which the linker keeps every exported method of the agent, a fifth of its size.
package apparmor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	hostapparmor "github.com/containerd/containerd/v2/pkg/apparmor"
)

// loadedProfiles lists the kernel's profiles, one a line: "name (mode)".
const loadedProfiles = "/sys/kernel/security/apparmor/profiles"

// Load loads the profile under a name, unless a profile of that name is loaded. It reports whether the device has
// AppArmor; without it there is no error. apparmor_parser is killed when ctx ends.
func Load(ctx context.Context, name string) (supported bool, err error) {
	if !hostapparmor.HostSupports() {
		return false, nil
	}
	mode, err := Mode(name)
	if err != nil || mode != "" {
		return true, err
	}
	return true, parse(ctx, profile(name))
}

// rules are what a container may not do, beside what its capabilities and its system call filter do not allow.
const rules = `
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (receive) peer=AGENT,
  signal (send,receive) peer=NAME,
  ptrace (trace,tracedby,read,readby) peer=NAME,

  # of /proc, only its own processes and kernel/shm*
  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9/],[^1-9/][^0-9/],[^1-9s/][^0-9y/][^0-9s/],[^1-9/][^0-9/][^0-9/][^0-9/]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/kcore rwklx,

  deny mount,

  # of /sys, only cgroups
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}
`

// profile is the profile's text, with those of the distribution's definitions that are installed.
func profile(name string) string {
	abi, definitions, base := "", "@{PROC}=/proc/\n", ""
	if installed("abi/3.0") {
		abi = "abi <abi/3.0>,\n"
	}
	if installed("tunables/global") {
		definitions = "#include <tunables/global>\n"
	}
	if installed("abstractions/base") {
		base = "\n  #include <abstractions/base>"
	}
	current, _ := os.ReadFile("/proc/self/attr/current") // none: not confined
	agent, _, _ := strings.Cut(strings.TrimSpace(string(current)), " ")
	return abi + definitions + "profile " + name + " flags=(attach_disconnected,mediate_deleted) {" + base +
		strings.NewReplacer("AGENT", cmp.Or(agent, "unconfined"), "NAME", name).Replace(rules)
}

func installed(definitions string) bool {
	_, err := os.Stat(filepath.Join("/etc/apparmor.d", definitions))
	return err == nil
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
