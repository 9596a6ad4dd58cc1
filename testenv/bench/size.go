package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/longshore-dev/longshore/testenv"
)

// platforms that a release of the agent is built for.
func platforms() []string { return []string{"amd64", "arm64", "arm/v7", "riscv64"} }

// sizes builds our programs for this machine into bin, as a release does, and weighs them.
func sizes(ctx context.Context, bin string) (map[string]sample, error) {
	samples := map[string]sample{}
	for _, program := range []string{"longshore", "longshore-agent", "longshore-fleet"} {
		size, err := build(ctx, program, runtime.GOARCH, filepath.Join(bin, program))
		if err != nil {
			return nil, err
		}
		samples["size of "+program] = sample{"MiB": size}
	}
	return samples, nil
}

// agentSizes weighs the agent for every platform. What the compiler has not done before takes minutes.
func agentSizes(ctx context.Context, bin string) (map[string]sample, error) {
	samples := map[string]sample{}
	for _, platform := range platforms() {
		size, err := build(ctx, "longshore-agent", platform, filepath.Join(bin, "other-agent"))
		if err != nil {
			return nil, err
		}
		samples["size of longshore-agent for "+platform] = sample{"MiB": size}
	}
	return samples, nil
}

// build compiles one of our programs, static and stripped, and returns its size in MiB.
func build(ctx context.Context, program, platform, file string) (float64, error) {
	root, err := testenv.Root()
	if err != nil {
		return 0, err
	}
	arch, arm := platform, ""
	if platform == "arm/v7" {
		arch, arm = "arm", "7"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", testenv.ReleaseTags, "-ldflags", "-s -w", "-o", file, "./cmd/"+program)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if arm != "" {
		cmd.Env = append(cmd.Env, "GOARM="+arm)
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build %s for %s: %w\n%s", program, platform, err, text)
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / (1 << 20), nil
}
