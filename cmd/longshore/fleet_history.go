package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/trust"
)

func rolloutHistoryCommand() command {
	return command{
		name: "history", args: "[DIRECTORY]", max: 1,
		usage: "list the rollouts of a fleet: when, by whom, and with which result",
		about: "Lists the fleet's rollouts from the registry, the newest first: when each began and last changed, its phase and reason, " +
			"its number of devices, who ran it, who signed its last record, and the revision of the files. With --verify-key or " +
			"--policy the signers are verified, and the exit code is 5 if a listed record has no trusted signature; otherwise the " +
			"list shows what the signatures claim. For a single device, and for fleets without waves, use longshore state " +
			"history.",
		examples: []string{"--verify-key release.pub plant", "--limit 3 -o json plant"},
		flags:    append(historyFlags(), registryFlags()...),
		run:      (*call).rolloutHistory,
	}
}

type rolloutHistory struct {
	Fleet      string         `json:"fleet"`
	Repository string         `json:"repository"`
	Verified   bool           `json:"verified"` // a key or a policy was given to verify signers with
	More       bool           `json:"more"`     // there are older ones
	Rollouts   []rolloutEntry `json:"rollouts"`
}

type rolloutEntry struct {
	Rollout  uint64        `json:"rollout"` // number
	Digest   digest.Digest `json:"digest"`  // of its last record
	Phase    string        `json:"phase"`
	Reason   string        `json:"reason,omitempty"`
	By       string        `json:"by,omitempty"`
	Began    string        `json:"began"`
	Changed  string        `json:"changed"`
	Revision string        `json:"revision,omitempty"` // of the files
	Waves    int           `json:"waves"`
	Devices  int           `json:"devices"`
	signersInfo
}

func (r rolloutHistory) quietText() string { return r.Rollouts[0].Digest.String() }

func (r rolloutHistory) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  ROLLOUT\tBEGAN\tCHANGED\tDEVICES\t"+signedBy(r.Verified)+"\tPHASE")
	for _, x := range r.Rollouts {
		fmt.Fprintf(t, "  %d\t%s\t%s\t%d\t%s\t%s\n", x.Rollout, x.Began, x.Changed, x.Devices, x.signersInfo, x.Phase)
		for _, l := range []struct{ label, text string }{{"", x.Reason}, {"run by ", x.By}, {"revision ", x.Revision}, {"! ", x.Unverified}, {"! ", x.Unread}} {
			if l.text != "" {
				fmt.Fprintf(t, "  \t\t\t\t\t  %s%s\n", l.label, oneLine(l.text))
			}
		}
	}
	_ = t.Flush() // into memory
	if r.More {
		fmt.Fprintln(w, "  and older ones")
	}
}

func (c *call) rolloutHistory(args []string) error {
	limit, err := c.historyLimit()
	if err != nil {
		return err
	}
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	signersOf, verifies, err := c.signersOf(trust.KindState)
	if err != nil {
		return err
	}
	l := rollout.Of(f, registry.Upstream{Client: c.registry}, nil, nil)
	all, more, err := l.History(c.Context, limit)
	if err != nil {
		return err
	}
	repo, err := c.registry.OpenName(c.Context, l.Repository())
	if err != nil {
		return err
	}
	r := rolloutHistory{Fleet: f.Name, Repository: l.Repository(), Verified: verifies, More: more}
	unverified := 0
	for _, rec := range all {
		x := rec.Rollout
		e := rolloutEntry{
			Rollout: x.Number, Digest: rec.Digest, Phase: string(x.Phase), Reason: x.Reason, By: x.By, Began: stamp(x.Began), Changed: stamp(x.Changed),
			Revision: x.States.Annotations[ocispec.AnnotationRevision], Waves: len(x.Waves), Devices: len(x.Targets),
		}
		if e.signersInfo, err = signersOf(c.Context, repo.Upstream(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: rec.Digest}); err != nil {
			return err
		}
		if e.Unverified != "" {
			unverified++
		}
		r.Rollouts = append(r.Rollouts, e)
	}
	if err := c.show(r); err != nil {
		return err
	}
	if unverified > 0 {
		return outcome.WithCode(fmt.Errorf("%s: %d of %s have no trusted signature", r.Repository, unverified, fleet.Counted(len(all), "rollout")), outcome.Verification)
	}
	return nil
}
