package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// machine says where the figures come from.
func machine(ctx context.Context, out io.Writer) error {
	containerd, err := version(ctx, "containerd")
	if err != nil {
		return err
	}
	runc, err := version(ctx, "runc")
	if err != nil {
		return err
	}
	model, memory := "unknown processor", ""
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(data); m != nil {
			model = string(m[1])
		}
	}
	if fields, err := testenv.Account("/proc/meminfo"); err == nil {
		memory = fmt.Sprintf(", %.0f GiB", fields["MemTotal"]/(1<<20))
	}
	kernel, _ := exec.CommandContext(ctx, "uname", "-r").Output()
	load, _ := os.ReadFile("/proc/loadavg")
	before, _, _ := strings.Cut(string(load), " ")
	fmt.Fprintf(out, "%s: %s, %d cores%s, Linux %s, %s, containerd %s, runc %s; load %s at the start.\n\n", time.Now().UTC().Format(time.DateOnly),
		model, runtime.NumCPU(), memory, strings.TrimSpace(string(kernel)), runtime.Version(), containerd, runc, before)
	if busy, err := strconv.ParseFloat(before, 64); err == nil && busy > float64(runtime.NumCPU())/2 {
		fmt.Fprint(out, "**Other work keeps this machine busy**: of all times, only ratios within a row are meaningful.\n\n")
	}
	return nil
}

// version asks a program of testenv for its version.
func version(ctx context.Context, program string) (string, error) {
	path, err := testenv.BuildProgram(ctx, os.Stderr, program)
	if err != nil {
		return "", err
	}
	text, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", program, err)
	}
	if m := regexp.MustCompile(`\sv?(\d+\.\d\S*)`).FindSubmatch(text); m != nil {
		return string(m[1]), nil
	}
	return strings.TrimSpace(string(text)), nil
}
