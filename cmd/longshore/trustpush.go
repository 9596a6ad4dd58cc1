package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

var trustInitCommand = command{
	name: "init", args: "HOST/PATH", min: 1, max: 1,
	usage: "write the first trust policy of a fleet",
	about: "Writes version 1 of trust.yaml, which names the keys that must sign the states of devices (--key), and the keys that may " +
		"sign the next version of the policy (--signer). Devices fetch that version from the repository HOST/PATH. Keep the " +
		"signers' keys apart from each other and from the release keys. Install the file on the devices by hand, once.",
	examples: []string{
		"--signer root-1.pub --signer root-2.pub --signer root-3.pub --threshold 2 --key release.pub harbor.acme.example/plant/trust",
		"--signer root-1.pub --key release.pub --scope harbor.acme.example/plant/** --file first.yaml harbor.acme.example/plant/trust",
	},
	flags: []cmdline.Flag{
		{Name: "signer", Value: []string(nil), Usage: "public key `FILE` of a signer of the next version; may be repeated"},
		{Name: "threshold", Value: 0, Usage: "`NUMBER` of required signers; 0 means more than half"},
		publicKeyFlag("public key `FILE` that must sign states; may be repeated, one signature is enough"),
		{Name: "scope", Usage: "`REPOSITORIES` that --key may sign for; default: everything beside HOST/PATH"},
		{Name: "file", Alias: "f", Value: artifacts.TrustFile, Usage: "`FILE` to write; it must not exist"},
	},
	run: (*call).trustInit,
}

type trustFile struct {
	File      string   `json:"file"`
	Version   uint64   `json:"version"`
	Signers   []string `json:"signers"`
	Threshold int      `json:"threshold"`
	Rules     int      `json:"rules"`
	// Generations resets the accepted generation of devices; null: they accept only higher ones.
	Generations *trust.Reset `json:"generations,omitempty"`
	// Published is the highest version in the repository of the next one; 0: unknown.
	Published uint64   `json:"published,omitempty"`
	Warnings  []string `json:"warnings"`
	Label     string   `json:"-"`
}

func (r trustFile) quietText() string { return r.File }

func (r trustFile) text(w io.Writer) {
	row(w, r.Label, "%s: version %d, %s", r.File, r.Version, printable.Counted(r.Rules, "rule"))
	row(w, "next", "with signatures by %d of %s", r.Threshold, strings.Join(r.Signers, ", "))
	if r.Published > 0 {
		row(w, "published", "version %d, in the repository of the next one", r.Published)
	}
	resetRow(w, r.Generations)
	rows(w, "warning", r.Warnings)
}

// resetRow prints the reset of generations in a policy; nil: there is none.
func resetRow(w io.Writer, r *trust.Reset) {
	if r != nil {
		row(w, "generations", "%s", r)
	}
}

func describeTrust(label, file string, t *trust.Policy) trustFile {
	r := trustFile{
		File: file, Version: t.Version, Signers: []string{}, Rules: len(t.Rules), Generations: t.Generations,
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

func (c *call) trustInit(args []string) error {
	ref, err := c.repositoryOnly(args[0])
	if err != nil {
		return err
	}
	f := trust.First{Repository: ref.Name(), Threshold: c.Int("threshold"), Scope: cmp.Or(c.String("scope"), path.Dir(ref.Name())+"/**")}
	if f.Signers, err = c.namedKeys("signer"); err != nil {
		return err
	}
	if f.Keys, err = c.namedKeys("key"); err != nil {
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
	if err := files.WriteNew(file, document, 0o644); err != nil {
		return err
	}
	return c.show(describeTrust("wrote", file, t))
}

// namedKeys reads the key files of a flag, at least one.
func (c *call) namedKeys(flag string) ([]trust.NamedPEM, error) {
	files := c.StringSlice(flag)
	if len(files) == 0 {
		return nil, c.misused("--%s is missing", flag)
	}
	var out []trust.NamedPEM
	for _, file := range files {
		data, err := bounded.File(os.Open, file, signing.MaxKeyBytes)
		if err != nil {
			return nil, err
		}
		out = append(out, trust.NamedPEM{Name: keyName(file), PEM: data})
	}
	return out, nil
}

var trustCheckCommand = command{
	name: "check", args: "FILE", min: 1, max: 1,
	usage: "check whether a trust policy can be published",
	about: "Reads a trust.yaml and its keys as a device does, and reports what would lock devices out: too few, revoked or expired " +
		"signers, a rule that rejects the policy's own repository, or a repository for the next version that has neither this " +
		"version nor the previous one. If the registry does not answer, a warning is printed. For a policy without updates use " +
		"longshore check.",
	examples: []string{"trust.yaml", "--offline -o json next/trust.yaml"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "offline", Value: false, Usage: "send no requests to the registry"},
	}, registryFlags),
	run: (*call).trustCheck,
}

func (c *call) trustCheck(args []string) error {
	data, err := c.readDocument(args[0])
	if err != nil {
		return err
	}
	if _, _, err := travelling(args[0], data); err != nil {
		return err
	}
	t, err := readPolicy(args[0], data) // as it is written, for positions in errors
	if err != nil {
		return err
	}
	if err := t.Publishable(c.now()); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	r := describeTrust("ok", args[0], t)
	if !c.Bool("offline") {
		r.Published, err = t.Successor(c.Context, moves{c.registry})
		if errors.Is(err, trust.ErrMissing) {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("the repository of the next version was not checked: %v", err))
		}
	}
	return c.show(r)
}

// moves opens the repository of the next version of a policy, without its mirrors.
type moves struct{ client *registry.Client }

var _ trust.Moves = moves{}

// Open implements [trust.Moves].
func (m moves) Open(ctx context.Context, repository string) (trust.Place, error) {
	repo, err := m.client.OpenName(ctx, repository)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil
}

// Copy implements [trust.Moves].
func (m moves) Copy(ctx context.Context, from, to trust.Place, d digest.Digest) error {
	source, ok := from.(*registry.Repository)
	target, remote := to.(*registry.Repository)
	if !ok || !remote {
		return fmt.Errorf("copy from %s to %s: %w", from.Name(), to.Name(), fault.ErrUnsupported)
	}
	_, err := target.CopyFrom(ctx, source, d, "")
	return err
}

// travelling puts the files that a policy names into it.
func travelling(file string, data []byte) (document, root []byte, err error) {
	return trust.Inline(file, data, policyFile)
}

var trustPushCommand = command{
	name: "push", args: "FILE HOST/PATH", min: 2, max: 2,
	usage: "propose the next version of the trust policy",
	about: "Packs FILE with its keys, compares it with the published version in HOST/PATH, signs it with each --key, and pushes it as " +
		"a proposal with the tag vN.proposal. When it meets the thresholds of the published and of the new version, it is " +
		"published as vN, and devices apply it. Others sign the proposal with longshore trust sign. If two people propose at the " +
		"same time, one command ends with exit code 6. A version with another trust.repository than HOST/PATH is rejected, " +
		"unless that repository also has it: --move publishes it there.",
	examples: []string{
		"--key root-1.key trust.yaml harbor.acme.example/plant/trust",
		"--key root-1.key --key 'pkcs11:token=root;object=root-2' trust.yaml harbor.acme.example/plant/trust",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "replace", Value: false, Usage: "replace an existing proposal; its signatures do not count for yours"},
		{Name: "move", Value: false, Usage: "confirm that the policy moves to another repository: publish this version there too"},
		annotationFlag,
	}, signersFlags, registryFlags),
	run: (*call).trustPush,
}

// quorumInfo shows who of the required signers has signed.
type quorumInfo struct {
	Threshold int      `json:"threshold"`
	Signed    []string `json:"signed"`
	Missing   []string `json:"missing"` // signers that have not signed
}

func quorum(t *trust.Tally) *quorumInfo {
	if t == nil {
		return nil
	}
	return &quorumInfo{t.Threshold, append([]string{}, t.Names()...), append([]string{}, t.Missing()...)}
}

func (q *quorumInfo) String() string {
	who := "no signer"
	if len(q.Signed) > 0 {
		who = strings.Join(q.Signed, ", ")
	}
	return fmt.Sprintf("%d of %d: %s", len(q.Signed), q.Threshold, who)
}

type proposalResult struct {
	Reference string `json:"reference"`
	digested
	Version    uint64         `json:"version"`
	Previous   digest.Digest  `json:"previous,omitempty"`
	Published  bool           `json:"published"`
	Before     *quorumInfo    `json:"before"` // of the previous version; null: this is the first
	After      *quorumInfo    `json:"after"`  // of the version itself
	Waiting    string         `json:"waiting,omitempty"`
	Signatures []audit.Signed `json:"signatures"`
	Warnings   []string       `json:"warnings"`
	Changes    []string       `json:"changes,omitempty"` // against the version before, sentences
	repository string

	Generations *trust.Reset `json:"generations,omitempty"` // signers must see it
}

func (r proposalResult) text(w io.Writer) {
	changeRows(w, r.Changes)
	rows(w, "warning", r.Warnings)
	resetRow(w, r.Generations)
	signatureRows(w, r.Signatures)
	if r.Published {
		row(w, "published", "%s", r.Reference)
	} else {
		row(w, "proposed", "%s", r.Reference)
		row(w, "waits for", "%s", r.Waiting)
		row(w, "", "longshore trust sign --key KEY %s@%s", r.repository, r.Digest)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (c *call) showProposal(ref registry.Reference, by []trust.Signatory, x *trust.Proposal) error {
	r := proposalResult{
		Reference: ref.WithTag(x.Tag).String(), digested: digested{x.Descriptor.Digest}, Version: x.Policy.Version, Previous: x.Index.Previous,
		Published: x.Published, Before: quorum(x.Old), After: quorum(x.New), Waiting: x.Missing(), Signatures: []audit.Signed{},
		Warnings: append([]string{}, x.Policy.Warnings...), repository: ref.Name(),
		Generations: x.Policy.Generations,
	}
	if x.Before != nil {
		r.Changes = trust.Difference(x.Before, x.Policy)
	}
	for _, s := range by {
		r.Signatures = append(r.Signatures, audit.SignedOf(s.(recording).made, "")...) // [call.newSigners] makes these
	}
	return c.show(r)
}

// policySession opens the repository of a policy, and the signers of --key and --keyless.
func (c *call) policySession(ref registry.Reference) (*registry.Repository, []trust.Signatory, error) {
	by, err := c.newSigners()
	if err != nil {
		return nil, nil, err
	}
	repo, err := c.upstream(ref)
	return repo, by, err
}

func (c *call) trustPush(args []string) error {
	ref, err := c.repositoryOnly(args[1])
	if err != nil {
		return err
	}
	d := trust.Draft{Replace: c.Bool("replace"), Move: c.Bool("move"), Annotations: c.annotations}
	data, err := c.readDocument(args[0])
	if err != nil {
		return err
	}
	if d.Document, d.Root, err = travelling(args[0], data); err != nil {
		return err
	}
	if d.Created, err = c.created(); err != nil {
		return err
	}
	repo, by, err := c.policySession(ref)
	if err != nil {
		return err
	}
	x, err := trust.Propose(c.Context, c.now(), repo, moves{c.registry}, d, by...)
	if err != nil {
		return err
	}
	return c.showProposal(ref, by, x)
}

// recording is a signer that records its signatures.
type recording struct{ *signer }

func (r recording) Sign(ctx context.Context, st signing.Store, subject ocispec.Descriptor) ([]signing.Signature, error) {
	made, err := r.Signer.Sign(ctx, st, subject)
	r.made = append(r.made, made...)
	return made, err
}

var trustSignCommand = command{
	name: "sign", args: "HOST/PATH[@DIGEST]", min: 1, max: 1,
	usage: "sign the proposed trust policy",
	about: "Shows what the proposal in HOST/PATH changes, and adds a signature. The last required signature publishes it. On a " +
		"terminal the command asks for confirmation. In a script, first inspect the proposal with longshore trust show " +
		"HOST/PATH:vN.proposal, then sign it by its digest: a proposal that was replaced in between is not signed (exit code 6).",
	examples: []string{
		"--key root-2.key harbor.acme.example/plant/trust@sha256:…",
		"--key root-2.key harbor.acme.example/plant/trust",
	},
	flags: slices.Concat([]cmdline.Flag{yesFlag}, signersFlags, registryFlags),
	run:   (*call).trustSign,
}

func (c *call) trustSign(args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	if ref.Tag != "" {
		return c.misused("%s: name the repository, or the proposal by its digest", args[0])
	}
	if len(c.StringSlice("key")) == 0 && !c.Bool("keyless") {
		return c.misused("use --key, or --keyless")
	}
	repo, by, err := c.policySession(ref)
	if err != nil {
		return err
	}
	seen, err := c.review(repo, ref.Digest)
	if err != nil {
		return err
	}
	x, err := trust.Endorse(c.Context, c.now(), repo, moves{c.registry}, seen, by...)
	if err != nil {
		return err
	}
	return c.showProposal(ref, by, x)
}

// review asks the user at a terminal whether to sign the proposal, and returns its digest. seen is the digest in the command
// line; "" if it has none.
func (c *call) review(repo *registry.Repository, seen digest.Digest) (digest.Digest, error) {
	x, err := trust.Pending(c.Context, c.now(), repo)
	if err != nil {
		return "", fmt.Errorf("sign the proposed trust policy in %s: %w", repo.Name(), err)
	}
	if seen != "" && seen != x.Descriptor.Digest {
		return seen, nil // Endorse rejects it
	}
	var shown strings.Builder
	changes, err := c.changesOf(repo, x)
	if err == nil {
		changeRows(&shown, changes)
		err = c.confirm(fmt.Sprintf("%sSign version %d?", &shown, x.Index.Version))
	}
	return x.Descriptor.Digest, err
}
