package containerd

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/cap"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// mayEmpower refuses privileges that the device's owner has not allowed.
func (r *Runtime) mayEmpower() error {
	if r.o.AllowPrivileged {
		return nil
	}
	return fault.WithHint(fmt.Errorf("privileged containers are not allowed on this device: %w", fault.ErrRejected),
		"name the capabilities and devices that it needs, or allow privileged containers in the agent's configuration: runtime.allowPrivileged")
}

// empower gives a process all that the kernel can give.
func (r *Runtime) empower(p *specs.Process) error {
	if err := r.mayEmpower(); err != nil {
		return err
	}
	all, err := cap.Current()
	if err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	p.ApparmorProfile, p.SelinuxLabel, p.NoNewPrivileges = "", "", false
	return nil
}
