package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

var stateDiffCommand = command{
	name: "diff", args: "HOST/PATH [FROM] [TO]", min: 1, max: 3,
	usage: "compare two generations of a device, line by line",
	about: "Compares the ApplicationDeployments and the windows for changes of two generations. FROM and TO are numbers from state history. The default " +
		"of TO is the generation that the device's tag names, that of FROM is the predecessor of TO. Exit code 1 means that they differ.",
	examples: []string{"--device press-07 harbor.acme.example/plant/state", "--device press-07 harbor.acme.example/plant/state 41 43"},
	flags:    slices.Concat([]cmdline.Flag{deviceFlag}, registryFlags),
	run:      (*call).stateDiff,
}

type stateDiffResult struct {
	Device string        `json:"device"`
	From   uint64        `json:"from"` // generation; 0: nothing was there
	To     uint64        `json:"to"`
	Digest digest.Digest `json:"digest"` // of To
	Lines  []string      `json:"lines"`
}

func (r stateDiffResult) text(w io.Writer) {
	for _, l := range r.Lines {
		fmt.Fprintln(w, l)
	}
}

func (c *call) stateDiff(args []string) error {
	ref, device, err := c.stateOf(args[0])
	if err != nil {
		return err
	}
	targets := make([]string, 2) // from, to
	for i, a := range args[1:] {
		if n, err := strconv.ParseUint(strings.TrimPrefix(a, "v"), 10, 64); err != nil || n == 0 {
			return c.misused("%q is not the number of a generation", a)
		} else {
			targets[i] = artifacts.HistoryTag(device.Tag(), n)
		}
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	repo = repo.Upstream() // a mirror may show old content
	if targets[1] == "" {
		targets[1] = device.Tag()
	}
	to, err := release.Read(c.Context, repo, targets[1])
	if err != nil {
		return hintHistory(err, device, ref)
	}
	if targets[0] == "" {
		targets[0] = to.Index.Previous.String()
	}
	r := stateDiffResult{Device: string(device), To: to.Index.Generation, Digest: to.Descriptor.Digest, Lines: []string{}}
	before := map[string][]byte{}
	if targets[0] != "" {
		from, err := release.Read(c.Context, repo, targets[0])
		if err != nil {
			return hintHistory(err, device, ref)
		}
		if from.Index.Device != to.Index.Device {
			return fmt.Errorf("%s and %s are states of different devices: %w", targets[0], targets[1], fault.ErrConflict)
		}
		r.From, before = from.Index.Generation, documents(from)
	}
	if d := fleet.DiffDocuments(before, documents(to)); d != nil {
		r.Lines = d
	}
	err = c.show(r)
	if err == nil && len(r.Lines) > 0 {
		err = outcome.Told(outcome.Differs)
	}
	return err
}

// documents returns the deployments of a state by their names and ids, and its windows.
func documents(s *release.Current) map[string][]byte {
	out := map[string][]byte{}
	for _, d := range s.State.Deployments {
		out[d.Document.Metadata.Name+" "+d.Document.ID] = d.Bytes
	}
	if w := s.Index.Windows; !w.Always() {
		out["windows"] = []byte(strings.Join(w.Strings(), "\n"))
	}
	return out
}
