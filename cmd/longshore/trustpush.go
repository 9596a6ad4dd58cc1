package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

func (p *program) trustInitCommand() *cli.Command {
	return p.command("trust", command{
		name: "init", args: "HOST/PATH", min: 1, max: 1,
		usage: "write the first trust policy of a fleet",
		about: "Writes trust.yaml, version 1: who must sign the states of devices (--key), and who may sign the next version of the " +
			"policy itself (--signer), which devices then take from the repository HOST/PATH by themselves. Keep the signers' keys " +
			"apart from each other, and from those that sign releases. The file goes to the devices by hand, once.",
		examples: []string{
			"--signer root-1.pub --signer root-2.pub --signer root-3.pub --threshold 2 --key release.pub harbor.acme.example/plant/trust",
			"--signer root-1.pub --key release.pub --scope harbor.acme.example/plant/** --file first.yaml harbor.acme.example/plant/trust",
		},
		flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "signer", Usage: "public key `FILE` of one who may sign the next version; may be repeated"},
			&cli.IntFlag{Name: "threshold", Usage: "`NUMBER` of signers that it takes; 0 is more than half"},
			&cli.StringSliceFlag{Name: "key", Usage: "public key `FILE` whose signature a state needs; may be repeated, any one suffices"},
			&cli.StringFlag{Name: "scope", Usage: "`REPOSITORIES` that --key speaks for; else everything beside HOST/PATH"},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Value: artifacts.TrustFile, Usage: "`FILE` to write; it must not be there yet"},
		},
		run: p.trustInit,
	})
}

type trustFile struct {
	File      string   `json:"file"`
	Version   uint64   `json:"version"`
	Signers   []string `json:"signers"`
	Threshold int      `json:"threshold"`
	Rules     int      `json:"rules"`
	// Generations is what happens to generations that devices accepted; null: they only rise.
	Generations *resetInfo `json:"generations,omitempty"`
	Warnings    []string   `json:"warnings"`
	Label       string     `json:"-"`
}

func (r trustFile) essence() string { return r.File }

func (r trustFile) text(w io.Writer) {
	row(w, r.Label, "%s: version %d, %s", r.File, r.Version, fleet.Counted(r.Rules, "rule"))
	row(w, "next", "signed by %d of %s", r.Threshold, strings.Join(r.Signers, ", "))
	r.Generations.text(w)
	for _, s := range r.Warnings {
		row(w, "warning", "%s", s)
	}
}

// resetInfo is what a policy says about generations; nil: nothing.
type resetInfo struct {
	To      uint64 `json:"resetTo"`
	Version uint64 `json:"version"` // of the policy with which it acts
}

func describeReset(t *trust.Policy) *resetInfo {
	if t.Generations == nil {
		return nil
	}
	return &resetInfo{t.Generations.To, t.Generations.Version}
}

func (r *resetInfo) text(w io.Writer) {
	if r != nil {
		row(w, "generations", "%s", trust.Reset(*r))
	}
}

func describeTrust(label, file string, t *trust.Policy) trustFile {
	r := trustFile{
		File: file, Version: t.Version, Signers: []string{}, Rules: len(t.Rules), Generations: describeReset(t),
		Warnings: append([]string{}, t.Warnings...), Label: label,
	}
	if t.Trust != nil {
		r.Threshold = t.Trust.Need()
		for _, s := range t.Trust.Signers {
			r.Signers = append(r.Signers, s.Name)
		}
	}
	return r
}

func (p *program) trustInit(c *cli.Context, args []string) error {
	ref, err := repositoryOnly(c, args[0])
	if err != nil {
		return err
	}
	f := trust.First{Repository: ref.Name(), Threshold: c.Int("threshold"), Scope: c.String("scope")}
	if f.Scope == "" {
		f.Scope = ref.Name()[:strings.LastIndex(ref.Name(), "/")] + "/**"
	}
	if f.Signers, err = namedKeys(c, "signer"); err != nil {
		return err
	}
	if f.Keys, err = namedKeys(c, "key"); err != nil {
		return err
	}
	document, err := f.Document()
	if err != nil {
		return err
	}
	t, err := trust.ParseTravelling(document, nil)
	if err != nil {
		return err
	}
	file := c.String("file")
	if err := writeNew(file, document, 0o644); err != nil {
		return err
	}
	return p.show(c, describeTrust("wrote", file, t))
}

// namedKeys reads the files of a flag that must be there, each under its own name.
func namedKeys(c *cli.Context, flag string) ([]trust.NamedPEM, error) {
	files := c.StringSlice(flag)
	if len(files) == 0 {
		return nil, misused(c, "--%s is missing", flag)
	}
	var out []trust.NamedPEM
	for _, file := range files {
		data, err := readBounded(file, signing.MaxKeyBytes)
		if err != nil {
			return nil, err
		}
		out = append(out, trust.NamedPEM{Name: keyName(file), PEM: data})
	}
	return out, nil
}

func (p *program) trustCheckCommand() *cli.Command {
	return p.command("trust", command{
		name: "check", args: "FILE", min: 1, max: 1,
		usage: "tell whether a trust policy can be published, offline",
		about: "Reads a trust.yaml and the keys that it names as devices do, and looks for what would keep a device from ever getting " +
			"another policy, or from anything that a rule asks to be signed: signers that are too few, revoked or expired, its own " +
			"repository rejected. longshore check tells whether a policy that does not travel is well formed.",
		examples: []string{"trust.yaml", "-o json next/trust.yaml"},
		run:      p.trustCheck,
	})
}

func (p *program) trustCheck(c *cli.Context, args []string) error {
	data, err := p.readDocument(args[0])
	if err != nil {
		return err
	}
	if _, _, err := travelling(args[0], data); err != nil {
		return err
	}
	t, err := readPolicy(args[0], data) // as it is written, for the places of what is wrong
	if err != nil {
		return err
	}
	if err := t.Publishable(p.now()); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return p.show(c, describeTrust("ok", args[0], t))
}

// travelling brings what a policy file names inside.
func travelling(file string, data []byte) (document, root []byte, err error) {
	return trust.Inline(file, data, func(path string) ([]byte, error) {
		return readBounded(filepath.Clean(path), trust.MaxFileBytes)
	})
}

func (p *program) trustPushCommand() *cli.Command {
	return p.command("trust", command{
		name: "push", args: "FILE HOST/PATH", min: 2, max: 2,
		usage: "propose the next version of the trust policy",
		about: "Packs FILE with the keys that it names, holds it against the version that is published in HOST/PATH, signs it with each --key, " +
			"and leaves it there as a proposal, under the tag vN.proposal. When enough of the signers that the published version names, " +
			"and of those that the new one names, have signed, it is published as vN, and devices take it over. Without --key it is " +
			"proposed for others to sign with longshore trust sign. Of two people who propose at once, one is told (exit code 6).",
		examples: []string{
			"--key root-1.key trust.yaml harbor.acme.example/plant/trust",
			"--key root-1.key --key 'pkcs11:token=root;object=root-2' trust.yaml harbor.acme.example/plant/trust",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "replace", Usage: "in place of what somebody has proposed; its signatures do not count for yours"},
			annotationFlag(),
		}, signersFlags(), registryFlags()),
		run: p.trustPush,
	})
}

// quorumInfo is how far a threshold is reached.
type quorumInfo struct {
	Threshold int      `json:"threshold"`
	Signed    []string `json:"signed"`
	Missing   []string `json:"missing"` // who could still sign
}

func quorum(t *trust.Tally) *quorumInfo {
	if t == nil {
		return nil
	}
	return &quorumInfo{t.Threshold, append([]string{}, t.Names()...), append([]string{}, t.Missing()...)}
}

func (q *quorumInfo) String() string {
	who := "nobody"
	if len(q.Signed) > 0 {
		who = strings.Join(q.Signed, ", ")
	}
	return fmt.Sprintf("%d of %d: %s", len(q.Signed), q.Threshold, who)
}

type proposalResult struct {
	Reference  string          `json:"reference"`
	Digest     digest.Digest   `json:"digest"`
	Version    uint64          `json:"version"`
	Previous   digest.Digest   `json:"previous,omitempty"`
	Published  bool            `json:"published"`
	Before     *quorumInfo     `json:"before"` // of the version before; null: this is the first
	After      *quorumInfo     `json:"after"`  // of the version itself
	Waiting    string          `json:"waiting,omitempty"`
	Signatures []signatureInfo `json:"signatures"`
	Warnings   []string        `json:"warnings"`
	repository string

	Generations *resetInfo `json:"generations,omitempty"` // who signs has to see it
}

func (r proposalResult) essence() string { return r.Digest.String() }

func (r proposalResult) text(w io.Writer) {
	for _, s := range r.Warnings {
		row(w, "warning", "%s", s)
	}
	r.Generations.text(w)
	for _, s := range r.Signatures {
		s.text(w)
	}
	if r.Published {
		row(w, "published", "%s", r.Reference)
	} else {
		row(w, "proposed", "%s", r.Reference)
		row(w, "waits for", "%s", r.Waiting)
		row(w, "", "longshore trust sign --key KEY %s@%s", r.repository, r.Digest)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (p *program) showProposal(c *cli.Context, ref registry.Reference, by []*signer, x *trust.Proposal) error {
	r := proposalResult{
		Reference: ref.WithTag(x.Tag).String(), Digest: x.Descriptor.Digest, Version: x.Policy.Version, Previous: x.Index.Previous,
		Published: x.Published, Before: quorum(x.Old), After: quorum(x.New), Waiting: x.Missing(), Signatures: []signatureInfo{},
		Warnings: append([]string{}, x.Policy.Warnings...), repository: ref.Name(),
		Generations: describeReset(x.Policy),
	}
	for _, s := range by {
		r.Signatures = append(r.Signatures, signatureInfos(s.made)...)
	}
	return p.show(c, r)
}

func (p *program) trustPush(c *cli.Context, args []string) error {
	ref, err := repositoryOnly(c, args[1])
	if err != nil {
		return err
	}
	d := trust.Draft{Replace: c.Bool("replace")}
	data, err := p.readDocument(args[0])
	if err != nil {
		return err
	}
	if d.Document, d.Root, err = travelling(args[0], data); err != nil {
		return err
	}
	if d.Annotations, err = pairs("annotation", c.StringSlice("annotation")); err != nil {
		return err
	}
	if d.Created, err = p.created(); err != nil {
		return err
	}
	by, err := p.newSigners(c)
	if err != nil {
		return err
	}
	defer closeAll(by)
	repo, done, err := p.open(c, ref)
	if err != nil {
		return err
	}
	defer done()
	x, err := trust.Propose(c.Context, p.now(), repo, d, signatories(by)...)
	if err != nil {
		return err
	}
	return p.showProposal(c, ref, by, x)
}

// recording signs, and remembers what it made.
type recording struct{ *signer }

func (r recording) Sign(ctx context.Context, st signing.Store, subject ocispec.Descriptor) ([]signing.Signature, error) {
	made, err := r.Signer.Sign(ctx, st, subject)
	r.made = append(r.made, made...)
	return made, err
}

// signatories are those who sign a policy.
func signatories(by []*signer) []trust.Signatory {
	var out []trust.Signatory
	for _, s := range by {
		out = append(out, recording{s})
	}
	return out
}

// repositoryOnly reads a reference that names no tag and no digest.
func repositoryOnly(c *cli.Context, s string) (registry.Reference, error) {
	ref, err := registry.ParseReference(s)
	if err == nil && ref.Target() != "" {
		err = misused(c, "%s: name the repository only, tags come from versions", s)
	}
	return ref, err
}

func (p *program) trustSignCommand() *cli.Command {
	return p.command("trust", command{
		name: "sign", args: "HOST/PATH[@DIGEST]", min: 1, max: 1,
		usage: "sign the trust policy that is proposed",
		about: "Adds a signature to the proposal in HOST/PATH. The last one that is needed publishes it. Look at it first, with longshore " +
			"trust show HOST/PATH:vN.proposal, and name its digest: another one that was put in its place meanwhile is not signed then " +
			"(exit code 6).",
		examples: []string{
			"--key root-2.key harbor.acme.example/plant/trust@sha256:…",
			"--key root-2.key harbor.acme.example/plant/trust",
		},
		flags: slices.Concat(signersFlags(), registryFlags()),
		run:   p.trustSign,
	})
}

func (p *program) trustSign(c *cli.Context, args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	if ref.Tag != "" {
		return misused(c, "%s: name the repository, or the proposal by its digest", args[0])
	}
	by, err := p.newSigners(c)
	if err != nil {
		return err
	}
	defer closeAll(by)
	if len(by) == 0 {
		return misused(c, "with which key? use --key, or --keyless")
	}
	repo, done, err := p.open(c, ref)
	if err != nil {
		return err
	}
	defer done()
	x, err := trust.Endorse(c.Context, p.now(), repo, ref.Digest, signatories(by)...)
	if err != nil {
		return err
	}
	return p.showProposal(c, ref, by, x)
}
