package confinement

import (
	"encoding/json"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxSeccomp bounds a profile.
const maxSeccomp = 1 << 20

// seccompProfile is a profile file: OCI's members, and those that make one profile usable on several machines.
type seccompProfile struct {
	specs.LinuxSeccomp
	ArchMap []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []seccompRule `json:"syscalls"`
}

type seccompRule struct {
	specs.LinuxSyscall
	Name     string     `json:"name"` // one, in place of names
	Includes conditions `json:"includes"`
	Excludes conditions `json:"excludes"`
}

type conditions struct {
	Caps      []string `json:"caps"`
	Arches    []string `json:"arches"`
	MinKernel string   `json:"minKernel"`
}

// seccompArch is a machine's name in filters, by Go's.
func seccompArch(arch string) specs.Arch {
	return map[string]specs.Arch{
		"amd64": specs.ArchX86_64, "386": specs.ArchX86, "arm64": specs.ArchAARCH64, "arm": specs.ArchARM, "riscv64": specs.ArchRISCV64,
	}[arch]
}

// parseSeccomp reads a profile for a container of these capabilities on a machine.
func parseSeccomp(data []byte, caps []string, arch string) (*specs.LinuxSeccomp, error) {
	bad := func(err error) error { return fmt.Errorf("seccomp profile: %w", failure.As(fault.ErrInvalid, err)) }
	if len(data) > maxSeccomp {
		return nil, fmt.Errorf("seccomp profile of %d bytes, over %d: %w", len(data), maxSeccomp, fault.ErrTooLarge)
	}
	var p seccompProfile
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, bad(err)
	}
	if p.DefaultAction == "" {
		return nil, bad(fmt.Errorf("it has no defaultAction"))
	}
	out := p.LinuxSeccomp
	out.Syscalls, out.ListenerPath, out.ListenerMetadata = nil, "", "" // no listener, because no process serves one
	native := seccompArch(arch)
	for _, m := range p.ArchMap {
		if m.Architecture == native {
			out.Architectures = append(append(out.Architectures, m.Architecture), m.SubArchitectures...)
		}
	}
	for _, r := range p.Syscalls {
		ok, err := r.applies(caps, arch)
		if err != nil {
			return nil, bad(err)
		}
		if !ok {
			continue
		}
		if r.Name != "" {
			r.Names = append(r.Names, r.Name)
		}
		if len(r.Names) == 0 || r.Action == "" {
			return nil, bad(fmt.Errorf("a rule without names or action"))
		}
		out.Syscalls = append(out.Syscalls, r.LinuxSyscall)
	}
	return &out, nil
}

func (r seccompRule) applies(caps []string, arch string) (bool, error) {
	in, ex := r.Includes, r.Excludes
	if len(in.Arches) > 0 && !slices.Contains(in.Arches, arch) || slices.Contains(ex.Arches, arch) {
		return false, nil
	}
	has := func(c string) bool { return slices.Contains(caps, c) }
	if slices.ContainsFunc(in.Caps, func(c string) bool { return !has(c) }) || slices.ContainsFunc(ex.Caps, has) {
		return false, nil
	}
	if in.MinKernel != "" {
		if ok, err := features.KernelAtLeast(in.MinKernel); err != nil || !ok {
			return false, err
		}
	}
	if ex.MinKernel != "" {
		if ok, err := features.KernelAtLeast(ex.MinKernel); err != nil || ok {
			return false, err
		}
	}
	return true, nil
}
