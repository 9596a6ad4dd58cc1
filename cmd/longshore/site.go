package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
	"github.com/longshore-dev/longshore/site"
)

// siteFlags choose what a site needs, and where to copy it.
var siteFlags = slices.Concat(siteDeviceFlags, []cmdline.Flag{
	{Name: "history", Value: 0, Usage: "`NUMBER` of generations before the current one to include"},
	{Name: "trust", Value: []string(nil), Usage: "`HOST/PATH` of a trust policy that the devices follow; may be repeated"},
	hostPathsFlag,
}, registryFlags)

// siteDeviceFlags choose devices of a site.
var siteDeviceFlags = []cmdline.Flag{
	{Name: "device", Value: []string(nil), Alias: "d", Usage: "`ID` of a device at the site; default: every device with a state in the repository; may be repeated", Offer: offerDevices},
	{Name: "fleet", Usage: "`DIRECTORY` of a fleet: only its devices with states in the repository; excludes --device"},
	{Name: "select", Usage: "`SELECTOR` of devices of --fleet, as in fleet.yaml: group=graz-line-a, site=graz; default: all", Offer: offerSelectors},
}

var hostPathsFlag = cmdline.Flag{Name: "host-paths", Value: false, Usage: "copy HOST/PATH to DESTINATION/HOST/PATH; default: to DESTINATION/PATH, for every HOST"}

// siteVerifyFlags name who must have signed the copied states.
var siteVerifyFlags = slices.Concat([]cmdline.Flag{
	publicKeyFlag("public key `FILE` that must have signed each state; may be repeated, one signature is enough"),
	{Name: "policy", Usage: "trust.yaml `FILE` to verify with instead of keys"},
	{Name: "no-verify", Value: false, Usage: "copy without verification; devices verify in any case"},
}, identityFlags)

// deviceIDs reads --device; nil: it is not given.
func (c *call) deviceIDs() (out []artifacts.DeviceID, err error) {
	for _, s := range c.StringSlice("device") {
		id, err := artifacts.ParseDeviceID(s)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// devicesOf reads --device, or --fleet and --select: those of the fleet's devices whose states are in a repository; nil means all.
func (c *call) devicesOf(states string) ([]artifacts.DeviceID, error) {
	out, err := c.deviceIDs()
	if err != nil {
		return nil, err
	}
	dir := c.String("fleet")
	switch {
	case dir == "" && c.String("select") != "":
		return nil, c.misused("--select needs --fleet")
	case dir == "":
		return out, nil
	case out != nil:
		return nil, c.misused("--fleet excludes --device; use --select \"device=%s\"", out[0])
	}
	choose, err := c.selected()
	if err != nil {
		return nil, err
	}
	f, err := readFleet(dir)
	if err != nil {
		return nil, err
	}
	if out = f.Repositories(choose)[states]; out == nil {
		err := fmt.Errorf("fleet %s: no chosen device has its state in %s: %w", dir, states, fault.ErrNotFound)
		return nil, fault.WithHint(err, "check the repository and --select: longshore fleet status "+dir)
	}
	return out, nil
}

// destination maps repositories to those of the site.
func (c *call) destination(arg string) site.Mapped {
	base := strings.TrimSuffix(strings.TrimPrefix(arg, "oci://"), "/")
	return func(_ context.Context, repository string) (*registry.Repository, error) {
		name := repository
		if !c.Bool("host-paths") {
			_, name, _ = strings.Cut(repository, "/")
		}
		ref, err := registry.ParseReference(base + "/" + name)
		if err != nil {
			return nil, err
		}
		if ref.Scheme != registry.SchemeOCI {
			return nil, c.misused("%s is no registry: to write to a directory use longshore export", arg)
		}
		repo, err := c.registry.OpenNamed(ref)
		if err != nil {
			return nil, err
		}
		return repo.Upstream(), nil
	}
}

// carrying is what a command copies from a source.
type carrying struct {
	*registry.Client
	from    site.Source // reads each repository once
	states  string      // repository
	trust   []string
	closure *site.Closure

	platforms []string // of images; empty: all
}

// carry finds what to copy, and verifies it, except content that a tag at the site names already. to opens repositories of the
// site; nil: it is not read.
func (c *call) carry(arg string, to site.Source, verify bool) (*carrying, error) {
	from := site.Snapshots(c.registry)
	states, o, err := c.siteOptions(arg)
	if err == nil && verify {
		var known []site.Source
		if to != nil {
			known = []site.Source{to}
		}
		if err = c.siteVerify(from, &o, nil, known...); c.policy != nil && c.policy.Trust != nil && !slices.Contains(o.Trust, c.policy.Trust.Repository) {
			o.Trust = append(o.Trust, c.policy.Trust.Repository) // devices at the site need it
		}
	}
	if err == nil && to != nil {
		o.Site = to
		o.Kept, o.Now = c.cacheDir("states"), c.now()
		o.Check = c.checkOf()
	}
	var platforms []string
	if err == nil {
		platforms, err = c.platformsOf()
	}
	if err != nil {
		return nil, err
	}
	closure, err := site.Close(c.Context, from, states, o)
	if err != nil {
		return nil, err
	}
	return &carrying{c.registry, from, states, o.Trust, closure, platforms}, nil
}

var platformFlag = cmdline.Flag{Name: "platform", Value: []string(nil), Usage: "of each image index copy only the images for `PLATFORM`, such as linux/arm64, and the index unchanged; default: all platforms; may be repeated"}

// platformsOf reads --platform.
func (c *call) platformsOf() ([]string, error) {
	all := c.StringSlice("platform")
	return all, artifacts.ValidPlatforms(all)
}

var checkFlag = cmdline.Flag{Name: "check", Value: "signatures", OneOf: []string{"tags", "signatures", "all"}, Usage: "`WHAT` to check if a device's tag at the site is up to date: " +
	"tags (nothing more), signatures (new signatures and other referrers) or all (every manifest and blob)"}

// checkOf reads --check.
func (c *call) checkOf() site.Check {
	if s := c.String("check"); s != "signatures" {
		return site.Check(s)
	}
	return site.CheckSignatures
}

// siteVerify lets a closure verify each state with everything that it names, all of it read from one source, and trust policies;
// with --no-verify nothing. A --policy is followed to its newest version, also in the places where versions are known already.
// tell, if it is not nil, gets the reports on states that hold.
func (c *call) siteVerify(from site.Source, o *site.Options, tell func(*audit.Report), known ...site.Source) (err error) {
	if o.Signatures, err = c.signaturesElsewhere(nil); err != nil {
		return err
	}
	if c.Bool("no-verify") {
		if len(c.StringSlice("key")) > 0 || c.policy != nil {
			err = c.misused("--no-verify excludes --key and --policy")
		}
		return err
	}
	judge, err := c.judge()
	if err != nil {
		return err
	}
	if x, ok := judge.(audit.Policy); ok {
		for _, at := range append(known, from) {
			if x.Policy, err = c.newestPolicy(c.Context, at, x.Policy); err != nil {
				return err
			}
		}
		judge = x
		if o.Signatures, err = c.signaturesElsewhere(x.Policy); err != nil {
			return err
		}
	}
	o.Verify = func(ctx context.Context, repo *registry.Repository, state digest.Digest) error {
		report, err := c.chain(ctx, repo, state.String(), judge, audit.Options{
			Places: sourcePlaces{from}, Kind: artifacts.KindState, Project: projectImages,
		})
		if err != nil {
			return err
		}
		if err := verdict(report.Err()); err != nil {
			return err
		}
		if tell != nil {
			tell(report)
		}
		return nil
	}
	o.VerifyTrust = func(ctx context.Context, repo *registry.Repository) error {
		return c.verifyTrust(ctx, repo, known...)
	}
	return nil
}

// signaturesElsewhere finds the repositories that a policy names for signatures, without a policy that of COSIGN_REPOSITORY; nil: neither is
// given. Those of trust policies are always beside them.
func (c *call) signaturesElsewhere(policy *trust.Policy) (func(artifacts.Kind, string) string, error) {
	if policy != nil {
		return func(kind artifacts.Kind, repository string) string {
			rule, _ := policy.Match(string(kind), repository)
			if kind == artifacts.KindTrust || rule.Signatures == repository {
				return ""
			}
			return rule.Signatures
		}, nil
	}
	name := c.getenv(signatureVariable)
	if name == "" {
		return nil, nil
	}
	ref, err := registry.ParseReference(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", signatureVariable, err)
	}
	return func(kind artifacts.Kind, _ string) string {
		if kind == artifacts.KindTrust {
			return ""
		}
		return ref.Name()
	}, nil
}

// newestPolicy is the policy that devices with this one follow by now: states that a new key signed travel together with the
// version that names the key.
func (p *program) newestPolicy(ctx context.Context, from site.Source, policy *trust.Policy) (*trust.Policy, error) {
	if policy.Trust == nil {
		return policy, nil
	}
	repo, err := from.OpenName(ctx, policy.Trust.Repository)
	if err != nil {
		return nil, err
	}
	past, err := p.descendants(ctx, repo, policy)
	for _, x := range past {
		if !x.Proposal {
			policy = x.Policy
		}
	}
	return policy, err
}

// descendants are the versions that follow a policy in its repository. One that devices would not follow is an error.
func (p *program) descendants(ctx context.Context, repo *registry.Repository, policy *trust.Policy) ([]trust.Past, error) {
	past, err := trust.History(ctx, p.now(), repo, policy)
	for _, x := range past {
		if !x.Proposal && err == nil {
			err = x.Err
		}
	}
	return past, fault.WithHint(err, "find the wrong version: longshore trust history "+repo.Name())
}

// verifyTrust refuses trust policies that devices would not follow: those that the policy is followed by in the repository that it
// names; in others those that follow what a known place has, and the newest version. A version that its predecessor's signers have not
// signed would stand in the way of the real one.
func (c *call) verifyTrust(ctx context.Context, repo *registry.Repository, known ...site.Source) error {
	if c.policy != nil && c.policy.Trust != nil && c.policy.Trust.Repository == repo.Name() {
		_, err := c.descendants(ctx, repo, c.policy)
		return err
	}
	for _, at := range known {
		there, err := at.OpenName(ctx, repo.Name())
		var has *trust.Published
		if err == nil {
			has, err = trust.Latest(ctx, there)
		}
		if err == nil && has != nil {
			_, err = c.descendants(ctx, repo, has.Policy)
		}
		if err != nil {
			return err
		}
	}
	newest, err := trust.Look(ctx, repo, "")
	if err == nil {
		err = newest.Signed(ctx, c.now(), repo)
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("trust policy in %s: %w", repo.Name(), err), "find the wrong version: longshore trust history "+repo.Name())
	}
	return nil
}

// sourcePlaces opens the repositories that documents name.
type sourcePlaces struct{ from site.Source }

func (p sourcePlaces) Place(ctx context.Context, repository string) (signing.Source, error) {
	return p.open(ctx, repository, registry.ParseReference)
}

func (p sourcePlaces) ImagePlace(ctx context.Context, reference string) (signing.Source, error) {
	return p.open(ctx, reference, registry.ParseImage)
}

func (p sourcePlaces) open(ctx context.Context, name string, parse func(string) (registry.Reference, error)) (signing.Source, error) {
	ref, err := parse(name)
	if err != nil {
		return nil, err
	}
	return p.from.OpenName(ctx, ref.Name())
}

// siteOptions reads the repository of states and the flags of siteFlags.
func (c *call) siteOptions(arg string) (states string, o site.Options, err error) {
	ref, err := registry.ParseReference(arg)
	if err != nil {
		return "", o, err
	}
	if ref.Target() != "" || ref.Scheme != registry.SchemeOCI {
		return "", o, c.misused("%s: name the repository of states as HOST/PATH, and devices with --device or --fleet", arg)
	}
	if n := c.Int("history"); n < 0 || n > maxHistory {
		return "", o, c.misused("--history %d is not from 0 to %d", n, maxHistory)
	}
	o.History = c.Int("history")
	for _, s := range c.StringSlice("trust") {
		trust, err := registry.ParseReference(s)
		if err != nil || trust.Target() != "" {
			return "", o, outcome.Usagef("", "--trust %s is not HOST/PATH", s)
		}
		o.Trust = append(o.Trust, trust.Name())
	}
	o.Devices, err = c.devicesOf(ref.Name())
	o.Lenient = c.String("fleet") != ""
	return ref.Name(), o, err
}
