package containerd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/moby/sys/signal"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// groupAnnotation makes the runc shim serve all containers of a group from one process.
	groupAnnotation = "io.containerd.runc.v2.group"
	// ownAnnotations are containerd's and ours: a service cannot set them.
	ownAnnotations = "io.containerd."

	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// blueprint is all that a container's specification is made of.
type blueprint struct {
	project string
	service workload.Service
	image   *images.Image
	at      Attachment
	mounts  []specs.Mount
	joined  joined
	f       Features
}

// spec is everything about a container that containerd's defaults do not say already.
func (r *Runtime) spec(b blueprint) []oci.SpecOpts {
	s, config := b.service, b.image.Config.Config
	hostname := firstOf(b.at.Hostname, s.Hostname, s.Name)
	opts := []oci.SpecOpts{
		processOpts(s, config, hostname),
		oci.WithHostname(hostname),
		oci.WithoutRunMount, // an image's own /run stays visible
		oci.WithMounts(b.mounts),
		resources(s, b.f),
		shmSize(s.Resources.ShmBytes),
		namespaced(s.Namespaces, b.at, b.joined, b.f),
	}
	if s.Domainname != "" && s.Namespaces.UTS != workload.HostNamespace {
		opts = append(opts, oci.WithDomainname(s.Domainname))
	}
	if user := firstOf(s.User, config.User); user != "" {
		opts = append(opts, asUser(user), supplementaryGroups)
	} else {
		opts = append(opts, oci.WithAdditionalGIDs("root"))
	}
	if len(s.Groups) > 0 {
		opts = append(opts, oci.WithAppendAdditionalGroups(s.Groups...))
	}
	if s.ReadOnly {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	if s.TTY {
		opts = append(opts, oci.WithTTY)
	}
	annotations := map[string]string{}
	for k, v := range s.Annotations {
		if !strings.HasPrefix(k, ownAnnotations) {
			annotations[k] = v
		}
	}
	if group := shimGroup(b.project, s); group != "" {
		annotations[groupAnnotation] = group
	}
	return append(opts,
		oci.WithAnnotations(annotations),
		devices(s),
		r.harmless(s),
		r.confinement(s, b.f),
		r.injected(s),
		r.mapped(s),
		inOrder,
		propagated,
	)
}

// inOrder puts mounts after those that they lie in.
func inOrder(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int {
		return strings.Count(strings.TrimRight(a.Destination, "/"), "/") - strings.Count(strings.TrimRight(b.Destination, "/"), "/")
	})
	return nil
}

// process sets what runs. A service's entrypoint replaces both the image's entrypoint and its command, as in Compose.
func processOpts(s workload.Service, config ocispec.ImageConfig, hostname string) oci.SpecOpts {
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
			args = append([]string{initTarget, initCommand, "--"}, args...)
		}
		spec.Process.Args = args
		spec.Process.Env = environment([]string{defaultPath, "HOSTNAME=" + hostname}, config.Env, s.Environment)
		spec.Process.Cwd = firstOf(s.WorkingDir, config.WorkingDir, "/")
		spec.Process.User.Umask = s.Umask
		return nil
	}
}

// environment joins lists of KEY=value; a later value replaces an earlier one in its place.
func environment(lists ...[]string) []string {
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

// asUser sets the user, "uid[:gid]" or names of the image.
func asUser(user string) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		if err := oci.WithUser(user)(ctx, client, c, s); err != nil {
			return fault.WithHint(fmt.Errorf("user %q is not in the image: %w", user, failure.As(fault.ErrInvalid, err)),
				"name a user that the image's /etc/passwd has, or give the number")
		}
		return nil
	}
}

// supplementaryGroups looks up the groups of the user that was set before.
func supplementaryGroups(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
	return oci.WithAdditionalGIDs(strconv.FormatUint(uint64(s.Process.User.UID), 10))(ctx, client, c, s)
}

// parseSignal reads a name or number; "" is SIGTERM.
func parseSignal(s string) (syscall.Signal, error) {
	if s == "" {
		return syscall.SIGTERM, nil
	}
	n, err := signal.ParseSignal(s)
	if err != nil {
		return 0, fmt.Errorf("stop signal %q: %w", s, failure.As(fault.ErrInvalid, err))
	}
	return n, nil
}

func firstOf(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

// processSpec is what a probe runs with: the container's own process, other arguments.
func processSpec(s *oci.Spec, argv []string) *specs.Process {
	p := *s.Process
	p.Args, p.Terminal = argv, false
	if p.Capabilities != nil {
		caps := *p.Capabilities
		p.Capabilities = &caps
	}
	return &p
}
