package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/trust"
)

// proposalFlags are those of commands that publish the state of one device.
func proposalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "propose", Usage: "push the state as a proposal for others to sign; the default if --policy requires several signers"},
		&cli.BoolFlag{Name: "replace-proposal", Usage: "replace an existing proposal of this generation; its signatures do not count for yours"},
	}
}

// proposalInfo is how far a proposed state is.
type proposalInfo struct {
	Tag       string      `json:"tag"`
	Published bool        `json:"published"`
	Signers   *quorumInfo `json:"signers"` // as the policy counts them; null: no policy was given
	Waiting   string      `json:"waiting,omitempty"`
}

func (i proposalInfo) text(w io.Writer, r stateResult) {
	for _, s := range r.Signatures {
		s.text(w)
	}
	if i.Signers != nil {
		row(w, "signers", "%s", i.Signers)
	}
	switch {
	case i.Published:
		row(w, "published", "%s", r.Reference)
	case r.DryRun:
		row(w, "proposal", "%s (--dry-run: nothing was pushed or signed)", r.Reference)
	default:
		row(w, "proposed", "%s", r.Reference)
	}
	if i.Waiting != "" {
		row(w, "waits for", "%s", i.Waiting)
		repository, _, _ := strings.Cut(r.Reference, ":"+i.Tag)
		row(w, "", "longshore state sign --device %s --key KEY --policy trust.yaml %s@%s", r.Device, repository, r.Digest)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

// proposes reports whether a state has to wait for other signers, and by which policy; nil: by none that is known.
func (p *program) proposes(c *cli.Context, repo *registry.Repository) (*trust.Policy, bool, error) {
	policy, err := p.policy(c)
	if err != nil || policy == nil {
		return nil, c.Bool("propose"), err
	}
	rule, found := policy.Match(trust.KindState, repo.Name())
	return policy, c.Bool("propose") || found && rule.Need() > 1 && !c.Bool("unsigned"), nil
}

// noteThreshold tells that devices wait for other signers, where a fleet's states need several: a fleet is not proposed.
func (p *program) noteThreshold(c *cli.Context, f *fleet.Fleet, o fleet.Options) error {
	policy, err := p.policy(c)
	if err != nil || policy == nil {
		return err
	}
	for _, repository := range slices.Sorted(maps.Keys(f.Repositories(o.Devices))) {
		if rule, found := policy.Match(trust.KindState, repository); found && rule.Need() > 1 {
			fmt.Fprintf(p.stderr, "note: states in %s need signatures by %s, and this command makes one: devices report signature-threshold "+
				"until the others have signed each state with longshore sign\n", repository, rule.Quorum)
		}
	}
	return nil
}

// entitled refuses a key whose signature would count for nothing.
func entitled(policy *trust.Policy, repository string, s *signer) error {
	if policy == nil || s == nil || s.Key().Fingerprint == "" { // of an identity only its signature tells
		return nil
	}
	rule, found := policy.Match(trust.KindState, repository)
	k := s.Key()
	switch {
	case !found || rule.Reject:
		return nil // the decision says it
	case !rule.Has(k.Fingerprint):
		return fault.WithHint(fmt.Errorf("key %s (%s) is not among those that sign states of %s: %w", k.Name, k.Fingerprint, repository, fault.ErrRejected),
			"the policy requires "+rule.Quorum.String()+": sign with one of these")
	case policy.KeyRevoked(k.Fingerprint) != nil:
		return fmt.Errorf("key %s (%s): %w: %s", k.Name, k.Fingerprint, fault.ErrKeyRevoked, policy.KeyRevoked(k.Fingerprint))
	}
	return nil
}

// propose pushes a state for others to sign, and publishes it if enough have signed it already.
func (p *program) propose(c *cli.Context, s *session, repo *registry.Repository, policy *trust.Policy, next *fleet.Next, r stateResult, mountFrom []string) error {
	tag := artifacts.ProposalTag(next.Publication.Tag, next.Generation)
	o := release.PublishOptions{HistoryTag: tag, MountFrom: mountFrom, Held: next.Publication.Held}
	r.Proposal = &proposalInfo{Tag: tag}
	if err := entitled(policy, repo.Name(), s.signer); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if c.Bool("replace-proposal") {
			o.HistoryTag, o.Tags = "", []string{tag}
		}
		var err error
		if r.pushed, err = rehearse(c, repo, next.Artifact, o); err != nil {
			return err
		}
		return p.show(c, r)
	}
	if s.signer != nil {
		o.Signer = s.signer
	}
	if _, err := release.Propose(c.Context, repo, next.Artifact, tag, c.Bool("replace-proposal"), o); err != nil {
		return err
	}
	return p.advance(c, s, repo, policy, next, r)
}

// advance counts the signatures of a proposed state, publishes it if there are enough, and tells of it.
func (p *program) advance(c *cli.Context, s *session, repo *registry.Repository, policy *trust.Policy, next *fleet.Next, r stateResult) error {
	a, at := next.Artifact.Descriptor, next.Publication
	subject := ocispec.Descriptor{MediaType: a.MediaType, Digest: a.Digest, Size: a.Size}
	info := &proposalInfo{Tag: artifacts.ProposalTag(at.Tag, next.Generation), Waiting: "other signers: longshore state sign counts them by --policy"}
	if policy != nil {
		var err error
		if info.Signers, info.Waiting, err = p.lacking(c, s.Client, policy, repo, subject); err != nil {
			return err
		}
	}
	tag := info.Tag
	if info.Waiting == "" {
		if at.Tagged != a.Digest { // else it is published
			if _, err := release.Publish(c.Context, repo, &artifacts.Artifact{Descriptor: a, Manifest: next.Artifact.Manifest}, release.PublishOptions{
				HistoryTag: at.HistoryTag, Tags: []string{at.Tag}, Precondition: &release.Precondition{
					Tagged: at.Tagged,
					// By the policy alone: what the own key has signed may wait for others.
					Verify: func(ctx context.Context, d digest.Digest) error {
						return p.accepts(ctx, s.Client, policy, repo, ocispec.Descriptor{MediaType: a.MediaType, Digest: d})
					},
				},
			}); err != nil {
				return err
			}
		}
		info.Published, tag = true, at.Tag
	}
	r.Proposal = info
	r.pushed = pushedAs(repo, tag, a)
	if s.signer != nil {
		r.Signatures = signatureInfos(s.signer.made)
	}
	return p.show(c, r)
}

// lacking counts the signatures of a state, and says what devices with the policy would still need; "": nothing.
func (p *program) lacking(c *cli.Context, client *registry.Client, policy *trust.Policy, repo *registry.Repository, state ocispec.Descriptor) (*quorumInfo, string, error) {
	d := policy.Decide(c.Context, trust.Question{
		Source: repo, Kind: trust.KindState, Subject: state, Now: p.now(), Thorough: true, Elsewhere: elsewhere(client),
	})
	t := d.Signatures
	signers := quorum(t)
	switch {
	case d.Err == nil && d.Insecure:
		return signers, "a signature", nil
	case d.Err == nil:
		return signers, "", nil
	case !fault.Distrusted(d.Err), t == nil: // it could not be found out, or it is rejected whoever signs
		return nil, "", d.Err
	case t.Holds(): // signed by enough, and without an attestation
		return signers, d.Err.Error(), nil
	}
	lacks := t.Threshold - t.Counted
	if missing := t.Missing(); len(missing) >= lacks {
		return signers, fmt.Sprintf("%d more of %s", lacks, strings.Join(missing, ", ")), nil
	}
	return signers, t.Err.Error(), nil
}

func (p *program) stateSignCommand() *cli.Command {
	return p.command("state", command{
		name: "sign", args: "HOST/PATH[@DIGEST]", min: 1, max: 1,
		usage: "sign the proposed state of a device",
		about: "Shows what the proposal changes on the device, adds a signature, and publishes the state if --policy then accepts it: " +
			"the history tag and the device's tag are set only now. Otherwise the command reports who still has to sign. A " +
			"proposal that another generation has overtaken is refused (exit code 6). First inspect it with --dry-run, and give " +
			"its digest: if the proposal was replaced in between, it is not signed. Repeat an interrupted command.",
		examples: []string{
			"--device press-07 --policy trust.yaml --dry-run harbor.acme.example/plant/state",
			"--device press-07 --policy trust.yaml --key release-b.key harbor.acme.example/plant/state@sha256:…",
		},
		flags: slices.Concat([]cli.Flag{
			deviceFlag(),
			&cli.BoolFlag{Name: "dry-run", Usage: "show what the proposal changes and who has signed it, and sign nothing"},
			yesFlag(),
		}, vouchFlags("the current state", "; says how many must sign; also checks components and images"), contentFlags(), signFlags(), registryFlags()),
		run: p.stateSign,
	})
}

func (p *program) stateSign(c *cli.Context, args []string) error {
	named, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	at, _, _ := strings.Cut(args[0], "@")
	ref, device, err := p.stateOf(c, at)
	if err != nil {
		return err
	}
	one := fleet.One{Device: device, Proposal: true, Digest: named.Digest}
	dry := c.Bool("dry-run")
	switch {
	case c.String("policy") == "":
		return misused(c, "who must sign it? Name the policy of the devices with --policy")
	case !dry && c.String("key") == "" && !c.Bool("keyless"):
		return misused(c, "with which key? use --key, or --keyless")
	}
	s, err := p.session(c, nil, true)
	if err != nil {
		return err
	}
	defer s.Close()
	repo, next, r, err := p.planOne(c, s, ref, one)
	if err != nil {
		return err
	}
	if !next.Expires.IsZero() && !next.Expires.After(p.now()) {
		return fault.WithHint(fmt.Errorf("what is proposed for %s expired %s: %w", device, r.Expires, fault.ErrConflict), "propose it again, with a later --expires")
	}
	policy, err := p.policy(c)
	if err == nil {
		err = entitled(policy, repo.Name(), s.signer)
	}
	if err != nil {
		return err
	}
	a := next.Artifact.Descriptor
	subject := ocispec.Descriptor{MediaType: a.MediaType, Digest: a.Digest, Size: a.Size}
	if dry {
		tag := artifacts.ProposalTag(next.Publication.Tag, next.Generation)
		r.Proposal = &proposalInfo{Tag: tag, Published: next.Tagged == a.Digest}
		r.pushed = pushedAs(repo, tag, a)
		r.DryRun = true
		if r.Proposal.Signers, r.Proposal.Waiting, err = p.lacking(c, s.Client, policy, repo, subject); err != nil {
			return err
		}
		if r.Proposal.Waiting == "" && !r.Proposal.Published { // a command was interrupted
			r.Proposal.Waiting = "its publication, by the next longshore state sign"
		}
		p.showChange(c, next)
		return p.show(c, r)
	}
	var shown strings.Builder // whatever the output is: what is signed is shown
	if !p.showChange(c, next) {
		next.Details(&shown)
	}
	if err := p.confirm(c, shown.String()+"Sign it?"); err != nil {
		return err
	}
	if err := s.signer.Sign(c.Context, repo, subject); err != nil {
		return err
	}
	return p.advance(c, s, repo, policy, next, r)
}

func (p *program) stateProposalsCommand() *cli.Command {
	return p.command("state", command{
		name: "proposals", args: "HOST/PATH", min: 1, max: 1,
		usage: "list the proposed states that wait for signatures",
		about: "Lists the proposals above the newest generation of each device, or of the device of --device. With --policy it " +
			"counts the signatures as devices do, and says who still has to sign.",
		examples: []string{"--policy trust.yaml harbor.acme.example/plant/state", "--device press-07 -o json harbor.acme.example/plant/state"},
		flags: slices.Concat([]cli.Flag{
			deviceFlag(),
			&cli.StringFlag{Name: "policy", Usage: "trust.yaml `FILE` that says who must sign"},
		}, registryFlags()),
		run: p.stateProposals,
	})
}

type proposalsResult struct {
	Repository string          `json:"repository"`
	Proposals  []proposedState `json:"proposals"` // by device and generation
}

type proposedState struct {
	Device     string        `json:"device,omitempty"`
	Generation uint64        `json:"generation"`
	Tag        string        `json:"tag"`
	Digest     digest.Digest `json:"digest,omitempty"`
	Created    string        `json:"created,omitempty"`
	Expires    string        `json:"expires,omitempty"`
	Signers    *quorumInfo   `json:"signers"` // as the policy counts them; null: no policy was given
	Waiting    string        `json:"waiting,omitempty"`
	Problem    string        `json:"problem,omitempty"` // why it is not what its tag says
}

func (r proposalsResult) essence() string {
	var tags []string
	for _, x := range r.Proposals {
		tags = append(tags, x.Tag)
	}
	return strings.Join(tags, "\n")
}

func (r proposalsResult) text(w io.Writer) {
	if len(r.Proposals) == 0 {
		row(w, "done", "nothing is proposed in %s", r.Repository)
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  DEVICE\tGENERATION\tDIGEST\tSIGNED\tWAITS FOR")
	for _, x := range r.Proposals {
		signed := "–"
		if x.Signers != nil {
			signed = x.Signers.String()
		}
		waits := cmp.Or(x.Waiting, "–")
		if x.Problem != "" {
			waits = "! " + x.Problem
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\n", cmp.Or(x.Device, x.Tag), x.Generation, short(x.Digest), signed, waits)
	}
	_ = t.Flush() // into memory
}

func (p *program) stateProposals(c *cli.Context, args []string) error {
	ref, err := repositoryOnly(c, args[0])
	if err != nil {
		return err
	}
	only := ""
	if s := c.String("device"); s != "" {
		id, err := artifacts.ParseDeviceID(s)
		if err != nil {
			return err
		}
		only = id.Tag()
	}
	policy, err := p.policy(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	repo, err := originOf(c.Context, client, ref)
	if err != nil {
		return err
	}
	tags, err := repo.TagsWithPrefix(c.Context, only)
	if err != nil {
		return err
	}
	r := proposalsResult{Repository: ref.Name(), Proposals: []proposedState{}}
	published, proposed := release.Generations(tags), release.Proposals(tags)
	for _, tag := range slices.Sorted(maps.Keys(proposed)) {
		numbers := proposed[tag]
		slices.Reverse(numbers)
		for _, n := range numbers {
			if only != "" && tag != only || len(published[tag]) > 0 && n <= published[tag][0] {
				continue
			}
			x, err := p.proposedState(c, client, repo, policy, artifacts.ProposalTag(tag, n))
			if err != nil {
				return err
			}
			x.Generation = n
			r.Proposals = append(r.Proposals, x)
		}
	}
	return p.show(c, r)
}

// proposedState reads one proposal. An error says that it could not be read.
func (p *program) proposedState(c *cli.Context, client *registry.Client, repo *registry.Repository, policy *trust.Policy, tag string) (proposedState, error) {
	x := proposedState{Tag: tag}
	desc, err := repo.Resolve(c.Context, tag)
	var manifest []byte
	if err == nil {
		x.Digest = desc.Digest
		desc, manifest, err = repo.Manifest(c.Context, desc.Digest)
	}
	var index *artifacts.StateIndex
	if err == nil {
		index, err = artifacts.OpenState(manifest)
	}
	if err == nil && artifacts.ProposalTag(index.Device.Tag(), index.Generation) != tag {
		err = fmt.Errorf("it is generation %d of %s: %w", index.Generation, index.Device, fault.ErrConflict)
	}
	if err != nil {
		if x.Problem = err.Error(); release.Unfit(err) {
			err = nil
		}
		return x, err
	}
	x.Device, x.Created, x.Expires = string(index.Device), index.Annotations[ocispec.AnnotationCreated], stamp(index.Expires)
	if policy == nil {
		return x, nil
	}
	x.Signers, x.Waiting, err = p.lacking(c, client, policy, repo, desc)
	if fault.Distrusted(err) && !errors.Is(err, fault.ErrTemporary) {
		x.Problem, err = err.Error(), nil
	}
	return x, err
}
