package admission

import "github.com/longshore-dev/longshore/agent/workload"

// Machine is what a device has. The zero value has nothing and allows nothing.
type Machine struct {
	Cores       int
	Memory      int64                                            // bytes; 0: unknown, not checked
	Cgroup      int                                              // version of control groups
	Lacks       func(workload.Resources) []workload.MissingLimit // limits that they do not have
	Seccomp     bool
	AppArmor    bool
	SELinux     bool
	Privileged  bool            // the owner of the device allows what workload.Privileges lists
	Guard       workload.Guard  // finds it; unused when it is allowed
	Runtimes    map[string]bool // names that a service may ask for
	NoProgram   string          // why the agent's program cannot run in containers, as init needs; "": it can
	ProgramHint string          // what to do about it
	Exists      func(path string) bool
	Volume      func(name string) bool // a volume that all projects share is there
}
