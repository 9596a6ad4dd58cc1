package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

func (p *program) statePushCommand() *cli.Command {
	return p.command("state", command{
		name: "push", args: "HOST/PATH", min: 1, max: 1,
		usage: "publish the next state of a device",
		about: "Creates the next generation of the device's state. Deployments come from files, from a bundle, or, for one component, " +
			"from --component and --set. What is not named stays: other deployments, and the parameters of a deployment that " +
			"--component replaces; without --component, --set and --unset change a deployment that is there. With --replace the " +
			"device runs exactly what is named. Every component is pinned to its current digest. The command shows what changes on " +
			"the device, as fleet plan does, and then publishes; with --dry-run it only shows it. The state is signed before the " +
			"device's tag moves to it. Its generation, and what stays, are read from a state that the same key signed; after a " +
			"change of keys, name the old one with --verify-key.",
		examples: []string{
			"--device press-07 --key release.key --component harbor.acme.example/plant/components/line-monitor:1.4.0 --set POLL_SECONDS=30 harbor.acme.example/plant/state",
			"--device press-07 --key release.key --name line-monitor --set POLL_SECONDS=60 harbor.acme.example/plant/state",
			"--device press-07 --key release.key --deployment line-monitor.yaml --deployment vision.yaml harbor.acme.example/plant/state",
		},
		flags: slices.Concat([]cli.Flag{
			deviceFlag(),
			&cli.StringSliceFlag{Name: "deployment", Usage: "`FILE` with an ApplicationDeployment, - is stdin; may be repeated"},
			&cli.StringSliceFlag{Name: "bundle", Usage: "`REFERENCE` of a bundle; may be repeated"},
			&cli.StringFlag{Name: "component", Usage: "`REFERENCE` of the component to deploy"},
			&cli.StringSliceFlag{Name: "set", Usage: "`KEY=VALUE` for the Compose file of --component, or of the deployment that is there; may be repeated"},
			&cli.StringSliceFlag{Name: "unset", Usage: "`KEY` that gets the Compose file's default again; may be repeated"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the deployment; default: the last element of --component's repository, or the only one that is there"},
			&cli.StringFlag{Name: "namespace", Usage: "`NAME` of the namespace of --component's deployment; default: its present one, or default"},
			&cli.BoolFlag{Name: "replace", Usage: "run exactly what is named: remove the other deployments, and keep no parameters"},
			&cli.BoolFlag{Name: "empty", Usage: "publish an empty state: the device removes everything"},
			&cli.Uint64Flag{Name: "generation", Usage: "`NUMBER` of the generation", DefaultText: "the current one plus one"},
		}, nextFlags(), vouchFlags("the current state", "; also checks components and images"), contentFlags(), endpointFlags(), proposalFlags(), signFlags(), registryFlags()),
		run: p.statePush,
	})
}

// nextFlags are those of every command that publishes the next state of one device.
func nextFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "expires", Usage: "`TIME` from which the device reports the state as stale: 2027-01-31T00:00:00Z, or 720h from now"},
		&cli.BoolFlag{Name: "unsigned", Usage: "publish without a signature; devices accept it only if their policy has allowUnsigned"},
		dryRunFlag(), annotationFlag(),
	}
}

type stateResult struct {
	pushed
	Device     string         `json:"device"`
	Generation uint64         `json:"generation"`
	Previous   digest.Digest  `json:"previous,omitempty"`
	Repeats    digest.Digest  `json:"repeats,omitempty"` // the earlier generation whose content this one has again
	History    string         `json:"history"`           // the tag that this generation keeps
	Expires    string         `json:"expires,omitempty"`
	Changes    []fleet.Change `json:"changes"`
	Kept       []string       `json:"kept"` // names of the deployments that were not named and stay
	Cost       fleet.Cost     `json:"cost"`
	Notes      []string       `json:"notes,omitempty"` // what was unusual
	Proposal   *proposalInfo  `json:"proposal,omitempty"`
}

func (r stateResult) text(w io.Writer) {
	row(w, "generation", "%d", r.Generation)
	if len(r.Kept) > 0 {
		row(w, "kept", "%s", strings.Join(r.Kept, ", "))
	}
	if r.Repeats != "" {
		row(w, "repeats", "%s", short(r.Repeats))
	}
	if r.Proposal != nil {
		r.Proposal.text(w, r)
		return
	}
	if len(r.Signatures) == 0 && !r.DryRun {
		row(w, "unsigned", "devices refuse it unless their policy allows that")
	}
	r.pushed.text(w)
}

func (p *program) statePush(c *cli.Context, args []string) error {
	if err := checkStateFlags(c); err != nil {
		return err
	}
	ref, device, err := p.stateOf(c, args[0])
	if err != nil {
		return err
	}
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	one := fleet.One{Device: device, Replace: c.Bool("replace") || c.Bool("empty"), Generation: c.Uint64("generation")}
	if one.Edit, err = p.stateEdit(c, s.Client, device); err != nil {
		return err
	}
	return p.publishOne(c, s, ref, one, bundlesBeside(c, ref))
}

// publishOne publishes the next generation of a device, or proposes it, and tells of it.
func (p *program) publishOne(c *cli.Context, s *session, ref registry.Reference, one fleet.One, mountFrom []string) error {
	repo, next, r, err := p.planOne(c, s, ref, one)
	if err != nil {
		return err
	}
	policy, proposes, err := p.proposes(c, repo)
	if err != nil {
		return err
	}
	p.showChange(c, next)
	if proposes {
		return p.propose(c, s, repo, policy, next, r, mountFrom)
	}
	at := next.Publication
	r.pushed, err = publish(c, repo, next.Artifact, s.signer, release.PublishOptions{
		HistoryTag: at.HistoryTag, Tags: []string{at.Tag}, MountFrom: mountFrom, Held: at.Held,
		Precondition: &release.Precondition{Tagged: at.Tagged, New: at.New, Verify: at.Verify},
	})
	if err != nil {
		return err
	}
	return p.show(c, r)
}

// showChange writes what the next generation changes, before anything is published. It reports whether the output is for people.
func (p *program) showChange(c *cli.Context, next *fleet.Next) bool {
	if c.String("output") != "text" || c.Bool("quiet") {
		return false
	}
	next.Details(p.stdout)
	return true
}

// planOne plans the next generation of a device; the result says what it changes.
func (p *program) planOne(c *cli.Context, s *session, ref registry.Reference, one fleet.One) (*registry.Repository, *fleet.Next, stateResult, error) {
	repo, err := originOf(c.Context, s.Client, ref)
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	one.Repository = repo.Name()
	o, err := p.oneOptions(c, s, repo, one.Device)
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	next, err := fleet.PlanOne(c.Context, stateRepository{registry.Upstream{Client: s.Client}, repo}, o, one)
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	r := stateResult{
		Device: string(one.Device), Generation: next.Generation, Previous: next.Previous, Repeats: next.Repeats, History: next.Publication.HistoryTag,
		Expires: stamp(next.Expires), Changes: append([]fleet.Change{}, next.Changes...), Kept: append([]string{}, next.Kept...), Cost: next.Cost,
		Notes: next.Reasons,
	}
	return repo, next, r, nil
}

// oneOptions are those of a plan of one device.
func (p *program) oneOptions(c *cli.Context, s *session, repo *registry.Repository, device artifacts.DeviceID) (o fleet.Options, err error) {
	if o.Created, err = p.created(); err != nil {
		return o, err
	}
	if o.Expires, err = p.expires(c.String("expires")); err != nil {
		return o, err
	}
	if o.Annotations, err = pairs("annotation", c.StringSlice("annotation")); err != nil {
		return o, err
	}
	if err := p.looking(c, s.Client, &o); err != nil {
		return o, err
	}
	o.Accepted = p.accepted(c, &fleet.Fleet{Devices: []*fleet.Device{{ID: device}}})
	vouching, err := p.vouching(c, s.Client, s.signer)
	if vouching != nil {
		o.Verify = func(ctx context.Context, _ string, state digest.Digest) error {
			return vouching(ctx, repo, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: state})
		}
	}
	return o, err
}

// stateRepository reads the repository of states that the command line names, which may be a layout, and all others by their
// names.
type stateRepository struct {
	registry.Upstream
	states *registry.Repository
}

// Resolve implements fleet.Registries.
func (s stateRepository) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	if repository == s.states.Name() {
		return s.states.Resolve(ctx, tag)
	}
	return s.Upstream.Resolve(ctx, repository, tag)
}

// Manifest implements fleet.Registries.
func (s stateRepository) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if repository == s.states.Name() {
		return s.states.Manifest(ctx, d)
	}
	return s.Upstream.Manifest(ctx, repository, d)
}

// Blob implements fleet.Registries.
func (s stateRepository) Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if repository == s.states.Name() {
		return s.states.Blob(ctx, d, limit)
	}
	return s.Upstream.Blob(ctx, repository, d, limit)
}

// TagsWithPrefix implements fleet.Registries; only the states are asked for.
func (s stateRepository) TagsWithPrefix(ctx context.Context, _, prefix string) ([]string, error) {
	return s.states.TagsWithPrefix(ctx, prefix)
}

// checkStateFlags refuses what contradicts itself.
func checkStateFlags(c *cli.Context) error {
	documents := len(c.StringSlice("deployment")) + len(c.StringSlice("bundle"))
	component, sets := c.String("component") != "", len(c.StringSlice("set"))+len(c.StringSlice("unset")) > 0
	switch {
	case c.String("device") == "":
		return misused(c, "which device? use --device")
	case whoSigns(c) != nil:
		return whoSigns(c)
	case c.Bool("empty") && (component || documents > 0 || sets):
		return misused(c, "--empty means that there is nothing to deploy")
	case !component && c.String("namespace") != "":
		return misused(c, "--namespace is for --component")
	case !component && documents > 0 && (sets || c.String("name") != ""):
		return misused(c, "--set, --unset and --name are not for documents, which have parameters of their own")
	case c.Bool("replace") && (!component && sets || len(c.StringSlice("unset")) > 0):
		return misused(c, "--replace keeps no parameters: --set is for --component then, and --unset for nothing")
	case !c.Bool("empty") && !component && documents == 0 && !sets:
		return misused(c, "what is to run? use --component, --deployment or --bundle, --set to change a parameter, or --empty for nothing")
	}
	return nil
}

func (p *program) expires(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return p.now().Add(d).UTC().Truncate(time.Second), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, outcome.Usagef("", "--expires %q is neither a time like 2027-01-31T00:00:00Z nor a duration like 720h", s)
	}
	if !t.After(p.now()) {
		return t, outcome.Usagef("", "--expires %s is in the past", s)
	}
	return t.UTC(), nil
}

// bundlesBeside are the repositories of --bundle in the registry of ref: pinned documents need not be sent again.
func bundlesBeside(c *cli.Context, ref registry.Reference) []string {
	var out []string
	for _, s := range c.StringSlice("bundle") {
		b, err := registry.ParseReference(s)
		if err == nil && b.Scheme == registry.SchemeOCI && ref.Scheme == registry.SchemeOCI && b.Registry == ref.Registry &&
			b.Repository != ref.Repository && !slices.Contains(out, b.Repository) {
			out = append(out, b.Repository)
		}
	}
	return out
}

// openTarget opens the repository of a reference that names something in it.
func openTarget(c *cli.Context, client *registry.Client, s string) (*registry.Repository, string, error) {
	ref, err := registry.ParseReference(s)
	if err != nil {
		return nil, "", err
	}
	if ref.Target() == "" {
		return nil, "", outcome.Usagef("", "%s: a tag or a digest is missing", s)
	}
	repo, err := client.Open(c.Context, ref)
	return repo, ref.Target(), err
}

// originOf opens a repository past its mirrors: what is published must follow what is there, and a mirror may show what was.
func originOf(ctx context.Context, client *registry.Client, ref registry.Reference) (*registry.Repository, error) {
	repo, err := client.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil
}

func (p *program) stateShowCommand() *cli.Command {
	return p.command("state", command{
		name: "show", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
		usage: "show the state of a device",
		about: "Shows a state and its documents, by the device with --device, or by tag or digest. Digests and documents are checked, " +
			"signatures are not: use longshore verify.",
		examples: []string{"--device press-07 harbor.acme.example/plant/state", "-o json harbor.acme.example/plant/state:press-07.v41"},
		flags:    slices.Concat([]cli.Flag{deviceFlag()}, registryFlags()),
		run:      p.stateShow,
	})
}

type stateInfo struct {
	Reference   string            `json:"reference"`
	Digest      digest.Digest     `json:"digest"`
	Device      string            `json:"device"`
	Generation  uint64            `json:"generation"`
	Previous    digest.Digest     `json:"previous,omitempty"`
	Repeats     digest.Digest     `json:"repeats,omitempty"` // the earlier generation whose content this one has again
	Expires     string            `json:"expires,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Deployments []shownDeployment `json:"deployments"`
}

type shownDeployment struct {
	deploymentInfo
	Parameters map[string]any `json:"parameters,omitempty"`
}

func (r stateInfo) essence() string { return r.Digest.String() }

func (r stateInfo) text(w io.Writer) {
	row(w, "device", "%s", r.Device)
	row(w, "state", "%s", r.Reference)
	if r.Previous != "" {
		row(w, "previous", "%s", short(r.Previous))
	}
	if r.Repeats != "" {
		row(w, "repeats", "%s", short(r.Repeats))
	}
	if r.Expires != "" {
		row(w, "expires", "%s", r.Expires)
	}
	label := fmt.Sprintf("generation %d", r.Generation)
	width := len(label)
	if len(r.Deployments) == 0 {
		fmt.Fprintf(w, "  %s  nothing to run\n", label)
	}
	for _, d := range r.Deployments {
		fmt.Fprintf(w, "  %-*s  %s %s\n", width, label, d.Name, versions(d.Components))
		label = ""
		for _, c := range d.Components {
			pin := "not pinned"
			if c.Digest != "" {
				pin = short(c.Digest)
			}
			fmt.Fprintf(w, "  %-*s    %s:%s  %s\n", width, "", c.Repository, c.Version, pin)
		}
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (p *program) stateShow(c *cli.Context, args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	if s := c.String("device"); s != "" {
		id, err := artifacts.ParseDeviceID(s)
		if err != nil {
			return err
		}
		if ref.Target() != "" {
			return misused(c, "%s has a tag or digest already, --device is one too many", args[0])
		}
		ref = ref.WithTag(id.Tag())
	}
	if ref.Target() == "" {
		return misused(c, "which device? use --device, a tag or a digest")
	}
	repo, done, err := p.open(c, ref)
	if err != nil {
		return err
	}
	defer done()
	s, err := release.Read(c.Context, repo, ref.Target())
	if err != nil {
		return seeHistory(err, "", ref)
	}
	return p.show(c, describeState(ref, s))
}

func describeState(ref registry.Reference, s *release.Current) stateInfo {
	r := stateInfo{
		Reference: ref.String(), Digest: s.Descriptor.Digest, Device: string(s.Index.Device), Generation: s.Index.Generation,
		Previous: s.Index.Previous, Repeats: s.Index.Repeats, Expires: stamp(s.Index.Expires), Annotations: map[string]string{}, Deployments: []shownDeployment{},
	}
	for k, v := range s.Index.Annotations {
		if !strings.HasPrefix(k, "dev.longshore.") {
			r.Annotations[k] = v
		}
	}
	for _, d := range s.State.Deployments {
		r.Deployments = append(r.Deployments, shownDeployment{describeDeployment(d), parameterValues(d.Document.Spec.Parameters)})
	}
	return r
}

func parameterValues(all map[string]margo.Parameter) map[string]any {
	out := map[string]any{}
	for name, p := range all {
		out[name] = p.Value
	}
	return out
}
