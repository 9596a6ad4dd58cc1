package agent

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Source reads artifacts by reference from wherever they are: a registry, its mirrors, a layout.
// Errors wrap the sentinels of artifacts/fault; bytes are bounded and hashed before they are returned.
type Source interface {
	// Resolve asks what a tag points at: one HEAD when all is well. repository has no scheme.
	Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
	// Manifest returns a manifest's exact bytes, at most 1 MiB, and its descriptor.
	Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
	// Blob returns a blob's exact bytes; d.Size bounds the read, and limit bounds d.Size.
	Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error)
}

// Kind is what an artifact is to the trust policy.
type Kind string

// Kinds of artifacts that a policy can speak about.
const (
	KindState     Kind = "state"
	KindComponent Kind = "component"
	KindImage     Kind = "image"
)

// Verdict is what a verifier found out about an artifact that it lets pass.
type Verdict struct {
	SignedBy []string                 // names of the policy's keys that signed, in the policy's order; empty: no signature was asked for
	Insecure bool                     // the policy allows unsigned artifacts here, spelled out
	Keys     map[string]digest.Digest // fingerprints of the keys that signed, by name
	SignedAt time.Time                // the earliest time that one of SignedBy says to have signed at; zero: one of them does not tell
	Until    time.Time                // when time alone may change the verdict; zero: never
}

// Verifier holds an artifact against the device's trust policy. A nil error means: may be used.
// It tells "could not find out" (fault.ErrTemporary) from "not signed", "badly signed" and "rejected".
type Verifier interface {
	Verify(ctx context.Context, kind Kind, repository string, d ocispec.Descriptor) (Verdict, error)
}

// Content keeps the small verified artifacts of this device: manifests, deployments, Compose Archives.
type Content interface {
	// Get returns bytes whose digest it has checked again. fault.ErrNotFound when they are not here, also when what is
	// here is damaged.
	Get(ctx context.Context, d ocispec.Descriptor) ([]byte, error)
	// Put is durable when it returns, and does nothing when the content is there.
	Put(ctx context.Context, d ocispec.Descriptor, data []byte) error
	// Retain removes everything but keep.
	Retain(ctx context.Context, keep []digest.Digest) error
}

// Runtime realises workloads, each part of it one side. Every call may be repeated: doing again what is done is no error.
// It never touches an object that does not carry the labels of this device. Calls come from several goroutines at once,
// but never two about the same container, and Prepare and Teardown of a project never beside each other.
type Runtime interface {
	Images
	Projects
	Containers
	Observer
}

// Images keeps the images of this device.
type Images interface {
	// Pull makes an image's content and its unpacked layers present and durable. progress may be nil.
	Pull(ctx context.Context, image workload.Image, progress func(done, total int64)) error
	// Image tells what an image says about itself. fault.ErrNotFound asks for it to be pulled.
	Image(ctx context.Context, image workload.Image) (workload.ImageInfo, error)
	// Collect drops images and unpacked layers that are not in keep.
	Collect(ctx context.Context, keep []workload.Image) error
}

// Projects makes what containers share.
type Projects interface {
	// Prepare makes a project's networks, volumes and addresses, whatever containers exist.
	Prepare(ctx context.Context, p *workload.Project) error
	// Switch lets a service's address and ports lead to container id in place of the other container of its replica, for
	// connections from now on. What is established stays with the other one.
	Switch(ctx context.Context, project, service, id string) error
	// Leave takes a container out of those that its service's address leads to. The last one stays.
	Leave(ctx context.Context, id string) error
	// Teardown deletes what a project without containers still owns. Volumes stay.
	Teardown(ctx context.Context, project string) error
}

// Containers changes containers, and asks them.
type Containers interface {
	// Create makes a container, not started. The project must be prepared, the image pulled: fault.ErrNotFound asks for
	// the image to be pulled again.
	Create(ctx context.Context, p *workload.Project, c workload.Container) error
	// Start runs a created or exited container, with its network, its configs and secrets and its hooks.
	Start(ctx context.Context, p *workload.Project, c workload.Container) error
	// Stop ends a container's process: its stop signal, then SIGKILL after its grace period. Stopped is no error.
	Stop(ctx context.Context, id string) error
	// Remove deletes a container, stopped or not, its writable layer and its network namespace. Gone is no error.
	Remove(ctx context.Context, id string) error
	// Probe asks once. A nil error is healthy; ctx bounds it.
	Probe(ctx context.Context, id string, p workload.Probe) error
}

// Observer tells what is there and what happens.
type Observer interface {
	// Observe lists what is there, fresh from the runtime.
	Observe(ctx context.Context) (workload.Observed, error)
	// Events tells of changes until ctx ends. The channel is closed then, and after a lost connection once EventLost
	// was sent.
	Events(ctx context.Context) (<-chan workload.Event, error)
	// Usage tells what running containers use, fresh from the runtime, and what the output of all takes.
	Usage(ctx context.Context) ([]workload.Usage, []workload.LogUsage, error)
	// Logs opens the output of a container. Follow ends with ctx.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)
}

// LogOptions choose a part of a container's output.
type LogOptions struct {
	Follow bool
	Tail   int // last lines; 0: all that is kept
	// Since and Until bound when the output was written; zero: no bound. Times of output are known to within a few seconds:
	// some lines more may come, none less.
	Since, Until time.Time
	// Stamps asks for lines that begin with their time, as far as it is known, in [StampFormat] and a space. A line of more
	// than 16 KiB comes in pieces, each with its time.
	Stamps bool
}

// StampFormat is that of times at the beginning of lines; all are in UTC.
const StampFormat = "2006-01-02T15:04:05.000Z"

// Report is one message to the fleet endpoint. Sequence orders the reports of a device and makes them idempotent.
type Report = store.Report

// Kinds of reports.
const (
	ReportStatus       = store.KindStatus       // Body is a Margo deployment status, Subject the deployment's id
	ReportCapabilities = store.KindCapabilities // Body is a Margo capabilities document, Subject the device's id
)

// Reporter delivers one report. fault.ErrTemporary keeps it in the outbox; any other error drops it, with a log line. With
// fault.ErrNotFound, ErrUnauthenticated, ErrDenied or ErrInvalid beside it the endpoint was reached and objects to this
// report: the device's capabilities then do not keep the reports behind them waiting.
type Reporter interface {
	Deliver(ctx context.Context, r Report) error
}
