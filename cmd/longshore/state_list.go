package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

var stateListCommand = command{
	name: "list", args: "HOST/PATH", min: 1, max: 1,
	usage: "list the devices of a repository with their states",
	about: "Lists every device with a history in the repository: the generation that its tag names, its digest and creation time, and " +
		"the generations that the registry has. A state that does not match its tag is reported. The command reads one " +
		"manifest for each device, from the registry and not from mirrors, and no signatures: longshore state history lists who " +
		"signed the generations of a device, and longshore verify checks a state.",
	examples: []string{"harbor.acme.example/plant/state", "-o json harbor.acme.example/plant/state"},
	flags:    registryFlags,
	run:      (*call).stateList,
}

type stateListResult struct {
	Repository string        `json:"repository"`
	Devices    []listedState `json:"devices"` // by tag
}

// listedState is the state that a device's tag names.
type listedState struct {
	Device      string        `json:"device"`
	Tag         string        `json:"tag"`
	Generation  uint64        `json:"generation,omitempty"`
	Digest      digest.Digest `json:"digest,omitempty"`
	Created     string        `json:"created,omitempty"`
	Generations []uint64      `json:"generations"`       // that have a tag
	Problem     string        `json:"problem,omitempty"` // why the state does not match its tag
}

func (r stateListResult) quietText() string {
	var tags []string
	for _, x := range r.Devices {
		tags = append(tags, x.Tag)
	}
	return strings.Join(tags, "\n")
}

func (r stateListResult) text(w io.Writer) {
	if len(r.Devices) == 0 {
		row(w, "done", "no device has a state in %s", r.Repository)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  DEVICE\tGENERATION\tDIGEST\tCREATED\tIN THE REGISTRY")
	for _, x := range r.Devices {
		number, has := "–", spans(x.Generations)
		if x.Generation > 0 {
			number = fmt.Sprint(x.Generation)
		}
		if x.Problem != "" {
			has += "  ! " + oneLine(x.Problem)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", x.Device, number, cmp.Or(printable.Digest(x.Digest), "–"), cmp.Or(x.Created, "–"), has)
	}
	_ = t.Flush() // into memory
}

func (c *call) stateList(args []string) error {
	repo, err := c.repository(args[0])
	if err != nil {
		return err
	}
	tags, err := repo.Tags(c.Context)
	if err != nil {
		return err
	}
	known := release.Generations(tags)
	r := stateListResult{Repository: repo.Reference().Place(), Devices: make([]listedState, len(known))}
	work, ctx := errgroup.WithContext(c.Context)
	work.SetLimit(historyAtOnce)
	for i, tag := range slices.Sorted(maps.Keys(known)) {
		work.Go(func() (err error) {
			r.Devices[i], err = listState(ctx, repo, tag)
			r.Devices[i].Generations = known[tag]
			slices.Sort(known[tag])
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	return c.show(r)
}

// taggedState reads the state that a tag names.
func taggedState(ctx context.Context, repo *registry.Repository, tag string) (ocispec.Descriptor, *artifacts.StateIndex, error) {
	desc, manifest, err := repo.Tagged(ctx, tag)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	index, err := artifacts.OpenState(manifest)
	return desc, index, err
}

// listState reads the state that a device's tag names.
func listState(ctx context.Context, repo *registry.Repository, tag string) (listedState, error) {
	x := listedState{Device: string(deviceOfTag(tag)), Tag: tag}
	desc, index, err := taggedState(ctx, repo, tag)
	x.Digest = desc.Digest
	if err == nil && index.Device.Tag() != tag {
		what := "it is a state of " + string(index.Device)
		err = fault.WithSummary(fmt.Errorf("%s: %w", what, fault.ErrConflict), what)
	}
	if err != nil {
		if x.Problem = fault.Summary(err); release.Unfit(err) {
			err = nil
		}
		return x, err
	}
	x.Device, x.Generation, x.Created = string(index.Device), index.Generation, index.Annotations[ocispec.AnnotationCreated]
	return x, nil
}
