package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/filebundle"
	"github.com/longshore-dev/longshore/signing/sign"
)

var verifyCommand = command{
	name: "verify", args: "[device] HOST/PATH[:TAG|@DIGEST]|FILE", min: 1, max: 2,
	usage: "verify the signatures of an artifact, down to the last image",
	about: "Verifies that one of the given keys signed the current digest of the reference, or that the trust policy accepts it, and " +
		"that everything below is valid: a state's documents and deployments, their pinned components, and the images in each " +
		"component's lock. The output shows what was checked, the signer with the claimed time, and what was not checked. Bundles " +
		"and cosign's older signatures are supported. With --attestation, an attestation of that type must be signed. The " +
		"command connects only to registries: that of the reference, and those that a state names.\n\nA file is verified with the " +
		"bundles beside it, such as FILE.sigstore.json, which longshore sign and attest write.\n\nWith the word device before a " +
		"reference such as HOST/PATH:press-07, the command verifies the report that the device pushed to the registry: the " +
		"device's key (--key) must have signed it, and it must name this device. With --state-key or --policy, the state that the " +
		"device runs must be signed too.",
	examples: []string{
		"--key release.pub harbor.acme.example/plant/state:press-07",
		"--policy /etc/longshore/trust.yaml harbor.acme.example/plant/components/web:2.0.1",
		"--certificate-identity anna@acme.example --certificate-oidc-issuer https://login.acme.example --trusted-root trusted_root.json harbor.acme.example/plant/components/web:2.0.1",
		"--key longshore.pub checksums.txt",
		"device --key press-07.pub --state-key release.pub --seen seen.json harbor.acme.example/plant/state:press-07",
		"--key ci.pub --attestation spdxjson --show-predicate harbor.acme.example/plant/components/web:2.0.1",
	},
	flags: slices.Concat([]cmdline.Flag{
		publicKeyFlag("public key `FILE`; may be repeated, one signature is enough"),
		{Name: "policy", Usage: "trust.yaml `FILE` to verify with instead of keys"},
		{Name: "annotation", Value: []string(nil), Alias: "a", Usage: "`KEY=VALUE` annotation that must be signed with the digest; may be repeated"},
		{Name: "attestation", Usage: "predicate `TYPE` of an attestation that must be signed: " + strings.Join(sign.PredicateNames(), ", ") + " or a URI", Offer: offerPredicates},
		{Name: "show-predicate", Value: false, Usage: "with --attestation, print only the predicate"},
	}, deviceReportFlags, auditFlags, identityFlags, registryFlags),
	run: (*call).verify,
}

// auditFlags choose what is verified.
var auditFlags = []cmdline.Flag{
	{Name: "kind", OneOf: verifiedKinds, Usage: "required `KIND`: " + strings.Join(verifiedKinds, ", ") + "; default: as the artifact declares"},
	{Name: "no-recurse", Value: false, Usage: "check only the artifact itself"},
}

// verifiedKinds are the kinds of artifacts that a policy can have rules for.
var verifiedKinds = []string{string(artifacts.KindState), string(artifacts.KindBundle), string(artifacts.KindComponent), string(artifacts.KindImage), string(artifacts.KindTrust)}

func (c *call) places() sourcePlaces { return sourcePlaces{c.registry} }

// projectImages reads a component's compose.yaml as the agent does.
func projectImages(ctx context.Context, archive *artifacts.Archive, u audit.Use) ([]audit.ImageUse, error) {
	env, err := u.Deployment.Environment(u.Component)
	if err != nil {
		return nil, err
	}
	project, err := compose.Load(ctx, archive, compose.Options{
		Deployment: u.Deployment.ID, Component: u.Component, Environment: env, AllowUnpinned: true,
	})
	if err != nil {
		return nil, err
	}
	var out []audit.ImageUse
	for _, i := range project.Images() {
		out = append(out, audit.ImageUse{Repository: i.Repository, Tag: i.Tag, Digest: i.Digest})
	}
	return out, nil
}

func (c *call) verify(args []string) error {
	if len(args) == 2 {
		if args[0] != "device" {
			return c.misused("%q and %q: name only one reference", args[0], args[1])
		}
		return c.verifyDevice(args[1])
	}
	for _, f := range deviceReportFlags {
		if c.IsSet(f.Name) {
			return c.misused("--%s needs the word device: longshore verify device REFERENCE", f.Name)
		}
	}
	judge, err := c.judge()
	if err != nil {
		return err
	}
	r, err := c.audit(args[0], judge)
	if err != nil {
		return err
	}
	failed := verdict(r.Err())
	if failed != nil && c.Bool("quiet") {
		return failed // a digest on stdout means that it is valid
	}
	if c.Bool("show-predicate") && failed == nil {
		return c.showPredicates(r.Report)
	}
	return cmp.Or(c.show(r), failed)
}

// verdict returns why the verification failed. If there was too much to read, the exit code is that of a failed verification.
func verdict(err error) error {
	if errors.Is(err, fault.ErrTooLarge) && outcome.Code(err) == outcome.Misused {
		return outcome.WithCode(err, outcome.Verification)
	}
	return err
}

// judge makes the keys, the identity or the policy of the flags.
func (c *call) judge() (audit.Judge, error) {
	files, attestation := c.StringSlice("key"), c.String("attestation")
	identity, err := c.identity()
	if err != nil {
		return nil, err
	}
	if (len(files) == 0 && identity == nil) == (c.policy == nil) {
		return nil, c.misused("use one of --key, --certificate-identity and --policy")
	}
	if c.annotations != nil && c.policy != nil {
		return nil, c.misused("--annotation needs --key: policies have no annotations")
	}
	if c.Bool("show-predicate") && attestation == "" {
		return nil, c.misused("--show-predicate needs --attestation")
	}
	if attestation != "" {
		if attestation, err = sign.PredicateType(attestation); err != nil {
			return nil, err
		}
	}
	if c.policy != nil {
		return audit.Policy{Policy: c.policy, Now: c.now(), Attestation: attestation}, nil
	}
	keys, err := publicKeys(files)
	if err != nil {
		return nil, err
	}
	verifiers := signing.Verifiers(keys...)
	if identity != nil {
		verifiers = append(verifiers, identity)
	}
	return audit.Keys{Verifiers: verifiers, Annotations: c.annotations, Attestation: attestation}, nil
}

// audit verifies an artifact and everything below it.
func (c *call) audit(reference string, judge audit.Judge) (verifyResult, error) {
	kind := artifacts.Kind(c.String("kind"))
	if isFile(reference) {
		return c.auditFile(reference, judge)
	}
	repo, target, err := c.openTarget(reference)
	if err != nil {
		return verifyResult{}, err
	}
	if _, isPolicy := judge.(audit.Policy); isPolicy && repo.Reference().Scheme == registry.SchemeLayout {
		return verifyResult{}, c.misused("%s is on disk, and policies have rules for registries only: use --key", reference)
	}
	report, err := c.chain(c.Context, repo, target, judge, audit.Options{
		Places: c.places(), Kind: kind, Alone: c.Bool("no-recurse") || c.String("attestation") != "", Project: projectImages,
	})
	if err != nil {
		return verifyResult{}, err
	}
	if report.Kind == "" && kind == "" {
		if _, isPolicy := judge.(audit.Policy); isPolicy {
			err := fmt.Errorf("%s: %w: its kind is unknown, and the policy's rules depend on it", reference, fault.ErrUnsupported)
			return verifyResult{}, fault.WithHint(err, "name its kind with --kind")
		}
	}
	return resultOf(reference, report), nil
}

// chain verifies an artifact, and everything below it in the places of o. A judge that is no policy reads signatures from the
// repository of COSIGN_REPOSITORY, if that is set.
func (p *program) chain(ctx context.Context, repo *registry.Repository, target string, judge audit.Judge, o audit.Options) (*audit.Report, error) {
	o.Judge, o.Now = judge, p.now()
	if policy, ok := judge.(audit.Policy); ok {
		policy.Elsewhere = o.Places.Place
		o.Judge, o.Now = policy, policy.Now
	} else if name := p.getenv(signatureVariable); name != "" {
		o.Judge = remoteSignatures{judge, name, o.Places}
	}
	return audit.Chain(ctx, repo, target, o)
}

func resultOf(reference string, report *audit.Report) verifyResult {
	r := verifyResult{Reference: reference, Verified: report.Err() == nil, Insecure: report.Insecure(), Signatures: []audit.Signed{}, Report: report}
	for _, check := range report.Checks {
		r.Signatures = append(r.Signatures, check.Signatures...)
	}
	return r
}

// isFile reports whether an argument is a file, and not a reference: it is a path, or it exists.
func isFile(arg string) bool {
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, "../") {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && info.Mode().IsRegular()
}

// auditFile verifies a file with the bundles beside it.
func (c *call) auditFile(file string, judge audit.Judge) (verifyResult, error) {
	if _, isPolicy := judge.(audit.Policy); isPolicy {
		return verifyResult{}, c.misused("%s is a file, and policies have rules for registries only: use --key", file)
	}
	if kind := c.String("kind"); kind != "" {
		return verifyResult{}, c.misused("%s is a file, not a %s", file, kind)
	}
	store, d, err := filebundle.Open(file)
	if err != nil {
		return verifyResult{}, err
	}
	return resultOf(file, audit.OfFile(c.Context, store, d, judge)), c.Context.Err()
}

// verifyResult is the result of a verification. Signatures are those of the artifact itself.
type verifyResult struct {
	Reference  string         `json:"reference"`
	Verified   bool           `json:"verified"`
	Insecure   bool           `json:"insecure"` // something was accepted without protection
	Signatures []audit.Signed `json:"signatures"`
	*audit.Report
	explain bool
}

func (r verifyResult) quietText() string { return r.Digest.String() }

func (r verifyResult) text(w io.Writer) {
	r.checks(w)
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (r verifyResult) checks(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n", cmp.Or(r.Kind, "artifact"), r.Reference)
	var top branch
	top.addNode(r.Node, r.explain)
	top.write(w, "")
	fmt.Fprintln(w, "not checked")
	for _, n := range r.NotChecked {
		fmt.Fprintf(w, "  %s: %s\n", n.What, n.Why)
	}
}

// addNode shows the checks of an artifact and of those below it.
func (b *branch) addNode(n *audit.Node, explain bool) {
	for _, check := range n.Checks {
		b.addCheck(check, explain)
	}
	for _, child := range n.Below {
		line := child.Kind
		for _, s := range []string{child.Name, child.Reference, printable.Digest(child.Digest), strings.Join(child.Platforms, ", ")} {
			if s != "" {
				line += "  " + oneLine(s)
			}
		}
		b.add("%s", line).addNode(child, explain)
	}
}

func (b *branch) addCheck(check audit.Check, explain bool) {
	mark := map[audit.Result]string{audit.Passed: "✓", audit.Failed: "✗", audit.Unknown: "?", audit.NotAsked: "–", audit.Insecure: "!"}[check.Result]
	var at *branch
	for _, s := range check.Signatures {
		at = b.add("%s %s", mark, signedText(check.Name, s))
	}
	if check.Detail != "" || len(check.Signatures) == 0 {
		line := mark + " " + check.Name
		if check.Detail != "" {
			line += ": " + strings.ReplaceAll(check.Detail, "\n", "; ")
		}
		at = b.add("%s", line)
	}
	if explain && check.Ruling != nil {
		at.addRuling(check.Ruling)
	}
}

// addRuling shows how a policy decides.
func (b *branch) addRuling(r *audit.Ruling) {
	if r.Rule == nil {
		b.add("no rule matches")
		return
	}
	line := fmt.Sprintf("%s for %s says: %s", r.Rule.Path, r.Rule.Scope, oneLine(r.Rule.Says))
	if len(r.Rule.Over) > 0 {
		line += "; overrides " + strings.Join(r.Rule.Over, ", ")
	}
	b.add("%s", line)
	for _, s := range r.Signers {
		line := fmt.Sprintf("%s  %s (%s)", s.State, s.Name, oneLine(s.About))
		if s.Reason != "" {
			line += ": " + oneLine(s.Reason)
		}
		b.add("%s", line)
	}
	for _, n := range r.Noticed {
		b.add("not counted  %s", oneLine(n))
	}
}

// signedText describes one valid signature.
func signedText(name string, s audit.Signed) string {
	verb := "signed"
	if name != "signature" {
		verb = name
		if s.PredicateType != "" {
			verb += " " + oneLine(s.PredicateType)
		}
	}
	var about []string
	if s.Algorithm != "" {
		about = append(about, s.Algorithm)
	}
	if s.Fingerprint != "" {
		about = append(about, printable.Digest(s.Fingerprint))
	}
	line := verb + " by " + s.By
	if s.Identity != "" {
		about = append([]string{oneLine(s.Identity) + " of " + oneLine(s.Issuer)}, about...)
	}
	if len(about) > 0 {
		line += " (" + strings.Join(about, ", ") + ")"
	}
	if s.Format != "" {
		line += ", " + string(s.Format)
	}
	switch {
	case s.Proven != "":
		line += ", " + s.Proven + " (proven)"
	case s.Time != "":
		line += ", " + s.Time + " (claimed)"
	}
	for _, k := range slices.Sorted(maps.Keys(s.Annotations)) {
		line += ", " + oneLine(k) + "=" + oneLine(s.Annotations[k])
	}
	if len(s.Checked) > 0 {
		line += "; " + strings.Join(s.Checked, ", ")
	}
	return line
}

// showPredicates writes the predicates of the statements, one JSON document per line.
func (p *program) showPredicates(r *audit.Report) error {
	for _, check := range r.Checks {
		for _, s := range check.Signatures {
			if s.Predicate == nil {
				continue
			}
			if _, err := fmt.Fprintf(p.stdout, "%s\n", s.Predicate); err != nil {
				return err
			}
		}
	}
	return nil
}
