// Package runspec writes the OCI runtime specification of a container, from a service, the configuration of its image, and the features
// of this machine.
package runspec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	_ "github.com/containerd/containerd/v2/client" // names the types of specifications
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"github.com/moby/sys/signal"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/confinement"
	"github.com/longshore-dev/longshore/agent/containerd/devices"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/guard"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// groupAnnotation makes the runc shim serve all containers of a group from one process.
	groupAnnotation = "io.containerd.runc.v2.group"
	// InitCommand runs "-- ARGV..." as the first process of a container: see package firstprocess. The name is fixed, as is
	// InitTarget: existing containers use them.
	InitCommand = "init-process"
	// InitTarget is where the agent's program is in a container: /dev is in memory, so it does not change the image's files.
	InitTarget = "/dev/longshore-init"
	// ownAnnotations are containerd's and ours: a service cannot set them.
	ownAnnotations = "io.containerd."

	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Maker makes specifications by the rules of a device.
type Maker struct {
	Client oci.Client // of containerd: users and groups are looked up in the container's layer
	Rules  confinement.Rules
	Guard  *guard.Guard
	CDI    devices.CDI

	Device    string // its id, for the telemetry of containers
	Telemetry Telemetry
}

// Blueprint has all inputs of a container's specification.
type Blueprint struct {
	Project   *workload.Project
	Container workload.Container
	Image     ocispec.ImageConfig
	NetNS     string // path of the network namespace; "": the device's
	Hostname  string // from its networks; "": the service's own, or its name
	Mounts    []specs.Mount
	Joined    Joined
	Features  features.Features
}

// Make writes the specification of a container, of whose record the id and the layer are used.
func (m Maker) Make(ctx context.Context, b Blueprint, ctr *containers.Container) (typeurl.Any, error) {
	s, err := oci.GenerateSpec(ctx, m.Client, ctr, m.opts(b)...)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAny(s)
}

// opts are the parts of a specification that differ from containerd's defaults.
func (m Maker) opts(b Blueprint) []oci.SpecOpts {
	s, config := b.Container.Service, b.Image
	hostname := cmp.Or(b.Hostname, s.Hostname, s.Name)
	opts := []oci.SpecOpts{
		processOpts(s, config, hostname, m.Telemetry.environment(m.Device, b.Project, b.Container, config)),
		asUser(cmp.Or(s.User, config.User, "0"), s.Groups),
		oci.WithHostname(hostname),
		oci.WithoutRunMount, // an image's own /run stays visible
		oci.WithMounts(b.Mounts),
		resources(s, b.Features),
		shmSize(s.Resources.ShmBytes),
		namespaced(s.Namespaces, b.NetNS, b.Joined, b.Features),
	}
	if s.Domainname != "" && s.Namespaces.UTS != workload.HostNamespace {
		opts = append(opts, oci.WithDomainname(s.Domainname))
	}
	if s.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	annotations := map[string]string{}
	for k, v := range s.Annotations {
		if !strings.HasPrefix(k, ownAnnotations) {
			annotations[k] = v
		}
	}
	if group := Group(b.Project.Name, s); group != "" {
		annotations[groupAnnotation] = group
	}
	return append(opts,
		oci.WithAnnotations(annotations),
		devices.Nodes(s),
		m.Guard.CheckNodes(s),
		m.Rules.Confine(s, b.Features),
		m.CDI.Inject(s),
		mapped(s),
		inOrder,
		propagated,
	)
}

// inOrder sorts a mount after the mounts that contain it.
func inOrder(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int {
		return strings.Count(strings.TrimRight(a.Destination, "/"), "/") - strings.Count(strings.TrimRight(b.Destination, "/"), "/")
	})
	return nil
}

// processOpts sets the process. A service's entrypoint replaces both the image's entrypoint and its command, as in Compose.
func processOpts(s workload.Service, config ocispec.ImageConfig, hostname string, telemetry []string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		entrypoint, command := config.Entrypoint, config.Cmd
		if s.Entrypoint != nil {
			entrypoint, command = s.Entrypoint, nil
		}
		if s.Command != nil {
			command = s.Command
		}
		args := slices.Concat(entrypoint, command)
		if len(args) == 0 || args[0] == "" {
			return fmt.Errorf("neither the service nor its image says what to run: %w", fault.ErrInvalid)
		}
		if s.Init {
			args = append([]string{InitTarget, InitCommand, "--"}, args...)
		}
		first := []string{defaultPath, "HOSTNAME=" + hostname}
		if s.TTY {
			first = append(first, "TERM=xterm")
		}
		spec.Process.Args, spec.Process.Terminal = args, s.TTY
		spec.Process.Env = Environment(first, telemetry, config.Env, s.Environment)
		spec.Process.Cwd = cmp.Or(s.WorkingDir, config.WorkingDir, "/")
		spec.Process.User.Umask = s.Umask
		return nil
	}
}

// Environment joins lists of KEY=value; a later value replaces an earlier one in its place.
func Environment(lists ...[]string) []string {
	var out []string
	at := map[string]int{}
	for _, kv := range slices.Concat(lists...) {
		k, _, _ := strings.Cut(kv, "=")
		if n, ok := at[k]; ok {
			out[n] = kv
			continue
		}
		at[k] = len(out)
		out = append(out, kv)
	}
	return out
}

// asUser sets the user and the groups of the process, by the files of its layer. containerd's own options for that would mount the layer once for
// each of them, and link text/template.
func asUser(name string, groups []string) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		layer, err := client.SnapshotService(c.Snapshotter).Mounts(ctx, c.SnapshotKey)
		if err != nil {
			return err
		}
		var user specs.User
		var unknown error // apart from those of the mount, which have the name of its directory in their text
		err = mount.WithReadonlyTempMount(ctx, users.WithoutMapping(layer), func(root string) error {
			user, unknown = users.LookUp(root, name, groups)
			return nil
		})
		if err = cmp.Or(err, unknown); err != nil {
			return err
		}
		user.Umask = s.Process.User.Umask
		s.Process.User = user
		return nil
	}
}

// LookUpIn sets where layers are mounted while users are looked up, and unmounts there what a process that was killed has left.
func LookUpIn(dir string) error {
	if err := mount.SetTempMountLocation(dir); err != nil {
		return err
	}
	left, err := mount.CleanupTempMounts(0)
	return errors.Join(append(left, err)...)
}

// Signal reads the name or number of a signal; "" is SIGTERM. fault.ErrInvalid: there is no such signal.
func Signal(s string) (syscall.Signal, error) {
	if s == "" {
		return syscall.SIGTERM, nil
	}
	n, err := signal.ParseSignal(s)
	if err != nil {
		return 0, fmt.Errorf("stop signal %q: %w", s, failure.As(fault.ErrInvalid, err))
	}
	return n, nil
}

// Process is the container's own process with other arguments, without a terminal.
func Process(s *oci.Spec, argv []string) *specs.Process {
	p := *s.Process
	p.Args, p.Terminal = argv, false
	if p.Capabilities != nil {
		caps := *p.Capabilities
		p.Capabilities = &caps
	}
	return &p
}

// Group is the group of containers that share a shim with one of a service: its project. "": it shares none.
func Group(project string, s workload.Service) string {
	if s.OwnShim {
		return ""
	}
	return project
}

// BuiltAtStart reports whether a service's specification is written at each start, because it has values that may change between starts:
// numbers of devices, other containers' namespaces.
func BuiltAtStart(s workload.Service) bool {
	return s.Namespaces.PID.Service() != "" || s.Namespaces.IPC.Service() != "" ||
		len(s.Devices)+len(s.CDI)+len(s.GPUs) > 0 || s.Resources.Blkio != nil || s.Security != nil && s.Security.Privileged
}

// Nested reports whether a mount or the working directory of a specification has its place within something that is mounted from below dir.
func Nested(spec typeurl.Any, dir string) (bool, error) {
	var s oci.Spec
	if err := typeurl.UnmarshalTo(spec, &s); err != nil {
		return false, err
	}
	below := func(dir, path string) bool { return strings.HasPrefix(filepath.Clean(path), filepath.Clean(dir)+"/") }
	return slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool {
		return below(dir, m.Source) && (below(m.Destination, s.Process.Cwd) ||
			slices.ContainsFunc(s.Mounts, func(o specs.Mount) bool { return below(m.Destination, o.Destination) }))
	}), nil
}

// Rejoin updates the path of a container's network namespace in its specification, and the sources of the networks' files: by the path
// in the container, "" where there is none.
func Rejoin(old typeurl.Any, netns string, files map[string]string) (typeurl.Any, error) {
	var s oci.Spec
	if err := typeurl.UnmarshalTo(old, &s); err != nil {
		return nil, err
	}
	for n := range s.Linux.Namespaces {
		if s.Linux.Namespaces[n].Type == specs.NetworkNamespace {
			s.Linux.Namespaces[n].Path = netns
		}
	}
	for target, source := range files {
		// The first one there is ours: a service's mount at the same path comes after it.
		n := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
		if n >= 0 && source != "" && filepath.Base(s.Mounts[n].Source) == filepath.Base(source) {
			s.Mounts[n].Source = source
		}
	}
	return typeurl.MarshalAny(&s)
}

// propagated enables mount propagation between the device and a container that requires it: runc makes the container's root
// private otherwise.
func propagated(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	for _, m := range s.Mounts {
		for _, o := range m.Options {
			switch {
			case strings.HasSuffix(o, "shared"):
				s.Linux.RootfsPropagation = "rshared"
			case strings.HasSuffix(o, "slave") && s.Linux.RootfsPropagation == "":
				s.Linux.RootfsPropagation = "rslave"
			}
		}
	}
	return nil
}
