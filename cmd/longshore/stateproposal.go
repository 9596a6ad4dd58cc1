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

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

// proposalFlags are the flags of commands that publish states.
var proposalFlags = []cmdline.Flag{
	{Name: "propose", Value: false, Usage: "push states as proposals for others to sign; the default if --policy requires several signers"},
	{Name: "replace-proposal", Value: false, Usage: "replace existing proposals of the same generation; their signatures do not count for yours"},
}

// proposalInfo describes a proposed state.
type proposalInfo struct {
	Tag       string      `json:"tag"`
	Published bool        `json:"published"`
	Signers   *quorumInfo `json:"signers"` // as the policy counts them; null: no policy was given
	Waiting   string      `json:"waiting,omitempty"`
}

func (i proposalInfo) text(w io.Writer, r stateResult) {
	signatureRows(w, r.Signatures)
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

// severalSign reports whether states in a repository are proposed: because the policy requires several signers, or because of --propose.
// It rejects --unsigned where a policy requires several signers: the tag would be moved to a state that devices with the policy refuse.
func (c *call) severalSign(repository string) (bool, error) {
	if c.policy == nil || c.Bool("propose") {
		return c.Bool("propose"), nil
	}
	rule, found := c.policy.Match(trust.KindState, repository)
	several := found && rule.Need() > 1
	if several && c.Bool("unsigned") {
		return false, fault.WithHint(fmt.Errorf("--unsigned: devices with --policy refuse states in %s without signatures of %s: %w", repository, rule.Quorum.String(), fault.ErrRejected),
			"propose them with a key, or with --propose for others to sign")
	}
	return several, nil
}

// mayPropose rejects a key whose signature would not count.
func (c *call) mayPropose(repository string) error {
	if c.policy == nil || c.signer == nil || c.signer.Key().Fingerprint == "" { // an identity is known only from its signature
		return nil
	}
	rule, found := c.policy.Match(trust.KindState, repository)
	k := c.signer.Key()
	switch {
	case !found || rule.Reject:
		return nil // Decide returns the error
	case !rule.Has(k.Fingerprint):
		return fault.WithHint(fmt.Errorf("key %s (%s) may not sign states in %s: %w", k.Name, k.Fingerprint, repository, fault.ErrRejected),
			"the policy requires "+rule.Quorum.String()+": use one of these keys")
	case c.policy.KeyRevoked(k.Fingerprint) != nil:
		return fmt.Errorf("key %s (%s): %w: %s", k.Name, k.Fingerprint, fault.ErrKeyRevoked, c.policy.KeyRevoked(k.Fingerprint))
	}
	return nil
}

// propose pushes a state for others to sign, and publishes it if enough have already signed it.
func (c *call) propose(repo *registry.Repository, next *fleet.Next, r stateResult, mountFrom []string) error {
	tag := artifacts.ProposalTag(next.Publication.Tag, next.Generation)
	o := release.PublishOptions{HistoryTag: tag, MountFrom: mountFrom, Held: next.Publication.Held}
	r.Proposal = &proposalInfo{Tag: tag}
	if err := c.mayPropose(repo.Name()); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if c.Bool("replace-proposal") {
			o.HistoryTag, o.Tags = "", []string{tag}
		}
		var err error
		if r.pushed, err = c.previewPublish(repo, next.Artifact, o); err != nil {
			return err
		}
		return c.show(r)
	}
	if c.signer != nil {
		o.Signer = c.signer
	}
	if _, err := release.Propose(c.Context, repo, next.Artifact, tag, c.Bool("replace-proposal"), o); err != nil {
		return err
	}
	return c.advance(repo, next, r)
}

// advance publishes a proposed state if it has enough signatures, and prints the result.
func (c *call) advance(repo *registry.Repository, next *fleet.Next, r stateResult) error {
	a, at := next.Artifact.Descriptor, next.Publication
	info := &proposalInfo{Tag: artifacts.ProposalTag(at.Tag, next.Generation)}
	var err error
	if info.Signers, info.Waiting, err = c.complete(repo, next.Artifact, at); err != nil {
		return err
	}
	tag := info.Tag
	if info.Waiting == "" {
		info.Published, tag = true, at.Tag
	}
	r.Proposal = info
	r.pushed = describePushed(repo, tag, a)
	if c.signer != nil {
		r.Signatures = audit.SignedOf(c.signer.made, "")
	}
	return c.show(r)
}

// complete publishes a proposed state if the policy accepts it. It returns its signers, and who still has to sign; "": it is published.
func (c *call) complete(repo *registry.Repository, a *artifacts.Artifact, at fleet.Publication) (*quorumInfo, string, error) {
	if c.policy == nil {
		return nil, "other signers: longshore state sign counts them by --policy", nil
	}
	d := a.Descriptor
	signers, waiting, err := c.countSigners(repo, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
	if err != nil || waiting != "" || at.Tagged == d.Digest {
		return signers, waiting, err
	}
	_, err = release.Publish(c.Context, repo, &artifacts.Artifact{Descriptor: d, Manifest: a.Manifest}, release.PublishOptions{
		HistoryTag: at.HistoryTag, Tags: []string{at.Tag}, Precondition: &release.Precondition{
			Tagged: at.Tagged,
			// Only the policy counts: a state with a signature by our own key may still need others.
			Verify: func(ctx context.Context, state digest.Digest) error {
				return c.accepts(ctx, repo, ocispec.Descriptor{MediaType: d.MediaType, Digest: state})
			},
		},
	})
	return signers, "", err
}

// countSigners counts the signatures of a state, and returns what devices with the policy still require; "" means nothing.
func (c *call) countSigners(repo *registry.Repository, state ocispec.Descriptor) (*quorumInfo, string, error) {
	d := c.policy.Decide(c.Context, trust.VerifyRequest{
		Source: repo, Kind: trust.KindState, Subject: state, Now: c.now(), Thorough: true, Elsewhere: c.places().Place,
	})
	t := d.Signatures
	signers := quorum(t)
	switch {
	case d.Err == nil && d.Insecure:
		return signers, "a signature", nil
	case d.Err == nil:
		return signers, "", nil
	case !fault.Distrusted(d.Err), t == nil: // it could not be read, or it is rejected with any signature
		return nil, "", d.Err
	case t.Holds(): // enough signatures, but an attestation is missing
		return signers, fault.Summary(d.Err), nil
	}
	lacks := t.Threshold - t.Counted
	if missing := t.Missing(); len(missing) >= lacks {
		return signers, fmt.Sprintf("%d more of %s", lacks, strings.Join(missing, ", ")), nil
	}
	return signers, fault.Summary(d.Err), nil
}

var stateSignCommand = command{
	name: "sign", args: "HOST/PATH[@DIGEST]", min: 1, max: 1,
	usage: "sign the proposed state of a device",
	about: "Shows what the proposal changes on the device and adds a signature. If --policy then accepts the state, the command " +
		"publishes it: it sets the history tag and the device's tag. Otherwise it reports who still has to sign. If another " +
		"generation was published meanwhile, the exit code is 6. First inspect the proposal with --dry-run, then sign it by its " +
		"digest: a proposal that was replaced in between is not signed. Repeat an interrupted command.",
	examples: []string{
		"--device press-07 --policy trust.yaml --dry-run harbor.acme.example/plant/state",
		"--device press-07 --policy trust.yaml --key release-b.key harbor.acme.example/plant/state@sha256:…",
	},
	flags: slices.Concat([]cmdline.Flag{
		deviceFlag,
		{Name: "dry-run", Value: false, Usage: "show what the proposal changes and who has signed it, and sign nothing"},
		yesFlag,
	}, signedByFlags("the current state", "; says how many must sign; also checks components and images"), contentFlags, signFlags, registryFlags),
	run: (*call).stateSign,
}

func (c *call) stateSign(args []string) error {
	named, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	at, _, _ := strings.Cut(args[0], "@")
	ref, device, err := c.stateOf(at)
	if err != nil {
		return err
	}
	one := fleet.One{Device: device, Proposal: true, Digest: named.Digest}
	dry := c.Bool("dry-run")
	switch {
	case c.String("policy") == "":
		return c.misused("--policy is missing: name the policy of the devices")
	case !dry && c.String("key") == "" && !c.Bool("keyless"):
		return c.misused("use --key, or --keyless")
	}
	if err := c.openSigner(true); err != nil {
		return err
	}
	repo, next, r, err := c.planOne(ref, one)
	if err != nil {
		return err
	}
	if !next.Expires.IsZero() && !next.Expires.After(c.now()) {
		return fault.WithHint(fmt.Errorf("the proposal for %s expired %s: %w", device, r.Expires, fault.ErrConflict), "propose the state again, with a later --expires")
	}
	if err := c.mayPropose(repo.Name()); err != nil {
		return err
	}
	a := next.Artifact.Descriptor
	subject := ocispec.Descriptor{MediaType: a.MediaType, Digest: a.Digest, Size: a.Size}
	if dry {
		tag := artifacts.ProposalTag(next.Publication.Tag, next.Generation)
		r.Proposal = &proposalInfo{Tag: tag, Published: next.Tagged == a.Digest}
		r.pushed = describePushed(repo, tag, a)
		r.DryRun = true
		if r.Proposal.Signers, r.Proposal.Waiting, err = c.countSigners(repo, subject); err != nil {
			return err
		}
		if r.Proposal.Waiting == "" && !r.Proposal.Published { // the last command was interrupted
			r.Proposal.Waiting = "publication: run longshore state sign again"
		}
		c.showChange(next)
		return c.show(r)
	}
	var shown strings.Builder // with every output format: show what is signed
	if !c.showChange(next) {
		next.Details(&shown)
	}
	if err := c.confirm(shown.String() + "Sign it?"); err != nil {
		return err
	}
	if err := c.signer.Sign(c.Context, repo, subject); err != nil {
		return err
	}
	return c.advance(repo, next, r)
}

var stateProposalsCommand = command{
	name: "proposals", args: "HOST/PATH", min: 1, max: 1,
	usage: "list proposed states that still need signatures",
	about: "Lists the proposals with a higher number than the newest generation of their device. With --policy it counts the " +
		"signatures as devices do, and shows who still has to sign.",
	examples: []string{"--policy trust.yaml harbor.acme.example/plant/state", "--device press-07 -o json harbor.acme.example/plant/state"},
	flags: slices.Concat([]cmdline.Flag{
		deviceFlag,
		{Name: "policy", Usage: "trust.yaml `FILE` that names the required signers"},
	}, registryFlags),
	run: (*call).stateProposals,
}

type proposalsResult struct {
	Repository string          `json:"repository"`
	Proposals  []proposedState `json:"proposals"` // by device and generation
}

type proposedState struct {
	Device     string           `json:"device,omitempty"`
	Generation uint64           `json:"generation"`
	Tag        string           `json:"tag"`
	Digest     digest.Digest    `json:"digest,omitempty"`
	Created    string           `json:"created,omitempty"`
	Expires    string           `json:"expires,omitempty"`
	Windows    schedule.Windows `json:"windows,omitzero"`
	Signers    *quorumInfo      `json:"signers"` // as the policy counts them; null: no policy was given
	Waiting    string           `json:"waiting,omitempty"`
	Problem    string           `json:"problem,omitempty"` // why it does not match its tag
}

func (r proposalsResult) quietText() string {
	var tags []string
	for _, x := range r.Proposals {
		tags = append(tags, x.Tag)
	}
	return strings.Join(tags, "\n")
}

func (r proposalsResult) text(w io.Writer) {
	if len(r.Proposals) == 0 {
		row(w, "done", "there are no proposals in %s", r.Repository)
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
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\n", cmp.Or(x.Device, x.Tag), x.Generation, printable.Digest(x.Digest), signed, waits)
	}
	_ = t.Flush() // into memory
}

func (c *call) stateProposals(args []string) error {
	repo, err := c.repository(args[0])
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
	tags, err := repo.TagsWithPrefix(c.Context, only)
	if err != nil {
		return err
	}
	r := proposalsResult{Repository: repo.Reference().Place(), Proposals: []proposedState{}}
	published, proposed := release.Generations(tags), release.Proposals(tags)
	for _, tag := range slices.Sorted(maps.Keys(proposed)) {
		numbers := proposed[tag]
		slices.Reverse(numbers)
		for _, n := range numbers {
			if only != "" && tag != only || len(published[tag]) > 0 && n <= published[tag][0] {
				continue
			}
			x, err := c.proposedState(repo, artifacts.ProposalTag(tag, n))
			if err != nil {
				return err
			}
			x.Generation = n
			r.Proposals = append(r.Proposals, x)
		}
	}
	return c.show(r)
}

// proposedState reads one proposal.
func (c *call) proposedState(repo *registry.Repository, tag string) (proposedState, error) {
	x := proposedState{Tag: tag}
	desc, index, err := taggedState(c.Context, repo, tag)
	x.Digest = desc.Digest
	if err == nil && artifacts.ProposalTag(index.Device.Tag(), index.Generation) != tag {
		err = fmt.Errorf("it contains generation %d of %s: %w", index.Generation, index.Device, fault.ErrConflict)
	}
	if err != nil {
		if x.Problem = fault.Summary(err); release.Unfit(err) {
			err = nil
		}
		return x, err
	}
	x.Device, x.Created, x.Expires = string(index.Device), index.Annotations[ocispec.AnnotationCreated], stamp(index.Expires)
	x.Windows = index.Windows
	if c.policy == nil {
		return x, nil
	}
	x.Signers, x.Waiting, err = c.countSigners(repo, desc)
	if fault.Distrusted(err) && !errors.Is(err, fault.ErrTemporary) {
		x.Problem, err = fault.Summary(err), nil
	}
	return x, err
}
