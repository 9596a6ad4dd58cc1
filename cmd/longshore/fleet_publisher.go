package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

// fleetPublisher publishes the states of a fleet. It proposes those that others have to sign too: it sets the tags of such a state only if the
// policy accepts it. The other signers run the same command on the same files, which make the same states.
type fleetPublisher struct {
	*call
	several map[string]bool // repositories whose states several have to sign
}

// proposer returns the publisher of the states of devices. It rejects a key whose signature would not count, before anything is pushed.
func (c *call) proposer(repositories []string) (*fleetPublisher, error) {
	f := &fleetPublisher{c, map[string]bool{}}
	for _, name := range repositories {
		several, err := c.severalSign(name)
		if err != nil {
			return nil, err
		}
		if !several {
			continue
		}
		f.several[name] = true
		if err := c.mayPropose(name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// repositoriesOf are those of a plan's devices that get a state.
func repositoriesOf(plan *fleet.Plan) []string {
	all := map[string]bool{}
	for _, d := range plan.Devices {
		if d.Action == fleet.Publish {
			all[d.Repository] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Publish implements fleet.Publisher.
func (f *fleetPublisher) Publish(ctx context.Context, repository string, a *artifacts.Artifact, p fleet.Publication) error {
	repo, err := f.registry.OpenName(ctx, repository)
	if err != nil {
		return err
	}
	o := release.PublishOptions{Held: p.Held}
	if f.signer != nil {
		o.Signer = &signer{Signer: f.signer.Signer} // one for each device, of which many are signed for at once
	}
	if p.Tagged == a.Descriptor.Digest || !f.several[repository] { // a published state is only signed again
		o.HistoryTag, o.Tags, o.Precondition = p.HistoryTag, []string{p.Tag}, &p.Precondition
		_, err = release.Publish(ctx, repo, a, o)
		return err
	}
	repo = repo.Upstream()
	if _, err := release.Propose(ctx, repo, a, artifacts.ProposalOf(p.HistoryTag), f.Bool("replace-proposal"), o); err != nil {
		return err
	}
	_, waiting, err := f.complete(repo, a, p)
	if err == nil && waiting != "" {
		return &fleet.Proposed{Waiting: waiting}
	}
	return err
}

// fleetProposal is a state that waits for signatures.
type fleetProposal struct {
	fleetState
	Waiting string `json:"waiting"`
}

// proposalsOf are the proposed states.
func proposalsOf(r *fleet.Report) []fleetProposal {
	var out []fleetProposal
	for _, d := range r.Proposed {
		at := d.Repository + ":" + artifacts.ProposalTag(d.Device.Tag(), d.Generation)
		out = append(out, fleetProposal{fleetState{string(d.Device), at, d.Generation, d.Digest}, r.Waiting[d.Device]})
	}
	return out
}

// andProposed is how many states were proposed; "": none.
func andProposed(all []fleetProposal) string {
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d proposed", len(all))
}

// printProposed lists the first proposed states, and who has to sign them.
func printProposed(w io.Writer, all []fleetProposal) {
	firsts(w, all, func(s fleetProposal) {
		row(w, "proposed", "%s  generation %d  %s", s.Reference, s.Generation, printable.Digest(s.Digest))
	})
	var waits []string
	for _, s := range all {
		if !slices.Contains(waits, s.Waiting) {
			waits = append(waits, s.Waiting)
		}
	}
	rows(w, "waits for", waits)
	if len(all) > 0 {
		row(w, "", "the others sign with the same command, the same files and their own keys; for one device only: longshore state sign --device DEVICE …")
	}
}

// refuseWaves rejects publication in waves if states need several signers: a wave would wait for devices that cannot have the
// state yet. instead is what to do.
func (c *call) refuseWaves(f *fleet.Fleet, o fleet.Options, instead string) error {
	if c.Bool("propose") {
		return fault.WithHint(c.misused("--propose excludes publication in waves, which wait for the devices"), instead)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Repositories(o.Devices))) {
		switch several, err := c.severalSign(name); {
		case err != nil:
			return err
		case several:
			return fault.WithHint(fmt.Errorf("fleet %s: states in %s need several signers, and waves publish with one key: %w", f.Name, name, fault.ErrUnsupported), instead)
		}
	}
	return nil
}
