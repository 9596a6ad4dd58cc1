package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/audit"
)

var statePushCommand = command{
	name: "push", args: "HOST/PATH", min: 1, max: 1,
	usage: "publish the next state of a device",
	about: "Publishes the next generation of the device's state. Deployments come from files, from bundles, or from --component and " +
		"--set. The device's other deployments stay, and a deployment that --component replaces keeps its parameters. Without " +
		"--component, --set and --unset change an existing deployment. With --replace the device runs only what the command " +
		"names. --windows sets the windows in which the device makes changes; without it they stay, but --replace removes them. " +
		"Every component is pinned to its current digest. The command shows what changes on the device, as fleet plan does, and " +
		"then publishes; with --dry-run it only shows the change. It signs the state before it moves the device's tag. " +
		"It continues from a state that the same key signed; after a change of keys, name the old one with --verify-key.\n\nA state that needs several signers by --policy is " +
		"proposed: the others sign it with longshore state sign, and the last signature publishes it.",
	examples: []string{
		"--device press-07 --key release.key --component harbor.acme.example/plant/components/line-monitor:1.4.0 --set POLL_SECONDS=30 harbor.acme.example/plant/state",
		"--device press-07 --key release.key --name line-monitor --set POLL_SECONDS=60 harbor.acme.example/plant/state",
		"--device press-07 --key release.key --deployment line-monitor.yaml --deployment vision.yaml harbor.acme.example/plant/state",
	},
	flags: slices.Concat([]cmdline.Flag{
		deviceFlag,
		{Name: "deployment", Value: []string(nil), Usage: "`FILE` with an ApplicationDeployment, - is stdin; may be repeated"},
		{Name: "bundle", Value: []string(nil), Usage: "`REFERENCE` of a bundle; may be repeated"},
		{Name: "component", Usage: "`REFERENCE` of the component to deploy"},
		{Name: "set", Value: []string(nil), Usage: "`KEY=VALUE` for the Compose file of --component, or of the existing deployment; may be repeated"},
		{Name: "unset", Value: []string(nil), Usage: "`KEY` to remove, so that the default in the Compose file applies; may be repeated"},
		{Name: "name", Usage: "`NAME` of the deployment; default: the last element of --component's repository, or the only existing deployment"},
		{Name: "namespace", Usage: "`NAME` of the namespace of --component's deployment; default: the current one, or default"},
		{Name: "replace", Value: false, Usage: "run only what the command names: remove all other deployments and parameters"},
		{Name: "empty", Value: false, Usage: "publish an empty state: the device removes everything"},
		{Name: "generation", Value: uint64(0), Usage: "`NUMBER` of the generation", Default: "the current one plus one"},
	}, nextFlags, signedByFlags("the current state", "; also checks components and images"), contentFlags, endpointFlags, proposalFlags, signFlags, registryFlags),
	run: (*call).statePush,
}

// nextFlags are the flags of every command that publishes the next state of one device.
var nextFlags = []cmdline.Flag{
	{Name: "expires", Usage: "`TIME` from which the device reports the state as stale: 2027-01-31T00:00:00Z, or 30d from now"},
	{Name: "windows", Usage: "`FILE` with the list of windows in which the device makes changes, as changes.windows in agent.yaml; none removes them (default: those of the current state)"},
	{Name: "unsigned", Value: false, Usage: "publish without a signature; devices accept it only if their policy has allowUnsigned"},
	dryRunFlag, annotationFlag,
}

type stateResult struct {
	pushed
	Device     string           `json:"device"`
	Generation uint64           `json:"generation"`
	Previous   digest.Digest    `json:"previous,omitempty"`
	Repeats    digest.Digest    `json:"repeats,omitempty"` // the earlier generation with the same content
	History    string           `json:"history"`           // the tag that this generation keeps
	Expires    string           `json:"expires,omitempty"`
	Windows    schedule.Windows `json:"windows,omitzero"`
	Changes    []fleet.Change   `json:"changes"`
	Kept       []string         `json:"kept"` // names of unchanged deployments
	Cost       fleet.Cost       `json:"cost"`
	Notes      []string         `json:"notes,omitempty"` // about unusual situations
	Proposal   *proposalInfo    `json:"proposal,omitempty"`
}

func (r stateResult) text(w io.Writer) {
	row(w, "generation", "%d", r.Generation)
	some(w, "kept", strings.Join(r.Kept, ", "))
	some(w, "repeats", printable.Digest(r.Repeats))
	rows(w, "windows", r.Windows.Strings())
	if r.Proposal != nil {
		r.Proposal.text(w, r)
		return
	}
	if len(r.Signatures) == 0 && !r.DryRun {
		row(w, "unsigned", "devices refuse it unless their policy allows unsigned states")
	}
	r.pushed.text(w)
}

func (c *call) statePush(args []string) error {
	if err := c.checkStateFlags(); err != nil {
		return err
	}
	ref, device, err := c.stateOf(args[0])
	if err != nil {
		return err
	}
	if err := c.openSigner(false); err != nil {
		return err
	}
	one := fleet.One{Device: device, Replace: c.Bool("replace") || c.Bool("empty"), Generation: c.Uint64("generation")}
	if c.Bool("replace") {
		one.Windows = &schedule.Windows{}
	}
	if one.Edit, err = c.stateEdit(device); err != nil {
		return err
	}
	return c.publishOne(ref, one, c.bundlesBeside(ref))
}

// publishOne publishes or proposes the next generation of a device, and prints the result.
func (c *call) publishOne(ref registry.Reference, one fleet.One, mountFrom []string) error {
	named, err := c.windows()
	if err != nil {
		return err
	}
	if named != nil {
		one.Windows = named
	}
	repo, next, r, err := c.planOne(ref, one)
	if err != nil {
		return err
	}
	proposes, err := c.severalSign(repo.Name())
	if err != nil {
		return err
	}
	c.showChange(next)
	if proposes {
		return c.propose(repo, next, r, mountFrom)
	}
	at := next.Publication
	r.pushed, err = c.publish(repo, next.Artifact, release.PublishOptions{
		HistoryTag: at.HistoryTag, Tags: []string{at.Tag}, MountFrom: mountFrom, Held: at.Held, Precondition: &at.Precondition,
	})
	if err != nil {
		return err
	}
	return c.show(r)
}

// windows are those of --windows; nil: it is not given.
func (c *call) windows() (*schedule.Windows, error) {
	file := c.String("windows")
	switch file {
	case "":
		return nil, nil
	case "none":
		return &schedule.Windows{}, nil
	}
	data, err := c.readDocument(file)
	if err != nil {
		return nil, err
	}
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	w := schedule.Parse(root)
	if err := root.Err(); err != nil {
		return nil, err
	}
	var passed []strict.Fault
	for _, p := range w.Over(c.now()) {
		passed = append(passed, p.Passed())
	}
	if len(passed) > 0 {
		return nil, &strict.Error{File: file, Faults: passed}
	}
	return &w, nil
}

// showChange prints what the next generation changes, before it is published. It returns false if the output is not text.
func (c *call) showChange(next *fleet.Next) bool {
	if c.String("output") != "text" || c.Bool("quiet") {
		return false
	}
	next.Details(c.stdout)
	return true
}

// planOne plans the next generation of a device, and describes it.
func (c *call) planOne(ref registry.Reference, one fleet.One) (*registry.Repository, *fleet.Next, stateResult, error) {
	repo, err := c.upstream(ref)
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	one.Repository = repo.Reference().WithTag("").String() // a layout too is opened by this name
	o, err := c.planOptions()
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	o.Accepted = c.accepted(&fleet.Fleet{Devices: []*fleet.Device{{ID: one.Device}}})
	next, err := fleet.PlanOne(c.Context, registry.Upstream{Client: c.registry}, o, one)
	if err != nil {
		return nil, nil, stateResult{}, err
	}
	r := stateResult{
		Device: string(one.Device), Generation: next.Generation, Previous: next.Previous, Repeats: next.Repeats, History: next.Publication.HistoryTag,
		Expires: stamp(next.Expires), Windows: next.Windows, Changes: append([]fleet.Change{}, next.Changes...), Kept: append([]string{}, next.Kept...), Cost: next.Cost,
		Notes: next.Reasons,
	}
	return repo, next, r, nil
}

// checkStateFlags rejects contradictory flags.
func (c *call) checkStateFlags() error {
	documents := len(c.StringSlice("deployment")) + len(c.StringSlice("bundle"))
	component, sets := c.String("component") != "", len(c.StringSlice("set"))+len(c.StringSlice("unset")) > 0
	switch {
	case c.String("device") == "":
		return c.misused("use --device ID")
	case c.whoSigns() != nil:
		return c.whoSigns()
	case c.Bool("empty") && (component || documents > 0 || sets):
		return c.misused("--empty excludes --component, --deployment, --bundle, --set and --unset")
	case !component && c.String("namespace") != "":
		return c.misused("--namespace needs --component")
	case !component && documents > 0 && (sets || c.String("name") != ""):
		return c.misused("--set, --unset and --name cannot change the documents of --deployment and --bundle")
	case c.Bool("replace") && (!component && sets || len(c.StringSlice("unset")) > 0):
		return c.misused("--replace keeps no parameters: it excludes --unset, and --set needs --component")
	case !c.Bool("empty") && !component && documents == 0 && !sets && (c.String("windows") == "" || c.Bool("replace")):
		return c.misused("use --component, --deployment or --bundle, --set or --unset to change a parameter, --windows, or --empty")
	}
	return nil
}

func (p *program) expires(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := strict.ParseDuration(s); err == nil && d > 0 {
		return p.now().Add(d).UTC().Truncate(time.Second), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, outcome.Usagef("", "--expires %q is neither a time like 2027-01-31T00:00:00Z nor a duration like 720h or 30d", s)
	}
	if !t.After(p.now()) {
		return t, outcome.Usagef("", "--expires %s is in the past", s)
	}
	return t.UTC(), nil
}

// bundlesBeside are the repositories of --bundle in the registry of ref: documents are mounted from there.
func (c *call) bundlesBeside(ref registry.Reference) []string {
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

var stateShowCommand = command{
	name: "show", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
	usage: "show the state of a device",
	about: "Shows a state and its documents. Name the device with --device, or a tag or digest. Digests and documents are checked, " +
		"signatures are not: use longshore verify.",
	examples: []string{"--device press-07 harbor.acme.example/plant/state", "-o json harbor.acme.example/plant/state:press-07.v41"},
	flags:    slices.Concat([]cmdline.Flag{deviceFlag}, registryFlags),
	run:      (*call).stateShow,
}

type stateInfo struct {
	Reference string `json:"reference"`
	digested
	Device      string            `json:"device"`
	Generation  uint64            `json:"generation"`
	Previous    digest.Digest     `json:"previous,omitempty"`
	Repeats     digest.Digest     `json:"repeats,omitempty"` // the earlier generation with the same content
	Expires     string            `json:"expires,omitempty"`
	Windows     schedule.Windows  `json:"windows,omitzero"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Deployments []shownDeployment `json:"deployments"`
}

type shownDeployment struct {
	audit.Deployment
	Parameters map[string]any `json:"parameters,omitempty"`
}

func (r stateInfo) text(w io.Writer) {
	row(w, "device", "%s", r.Device)
	row(w, "state", "%s", r.Reference)
	some(w, "previous", printable.Digest(r.Previous))
	some(w, "repeats", printable.Digest(r.Repeats))
	some(w, "expires", r.Expires)
	rows(w, "windows", r.Windows.Strings())
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
				pin = printable.Digest(c.Digest)
			}
			fmt.Fprintf(w, "  %-*s    %s:%s  %s\n", width, "", c.Repository, c.Version, pin)
		}
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (c *call) stateShow(args []string) error {
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
			return c.misused("%s has a tag or digest, which excludes --device", args[0])
		}
		ref = ref.WithTag(id.Tag())
	}
	if ref.Target() == "" {
		return c.misused("use --device, a tag or a digest")
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	s, err := release.Read(c.Context, repo, ref.Target())
	if err != nil {
		return hintHistory(err, "", ref)
	}
	return c.show(describeState(ref, s))
}

func describeState(ref registry.Reference, s *release.Current) stateInfo {
	r := stateInfo{
		Reference: ref.String(), digested: digested{s.Descriptor.Digest}, Device: string(s.Index.Device), Generation: s.Index.Generation,
		Previous: s.Index.Previous, Repeats: s.Index.Repeats, Expires: stamp(s.Index.Expires), Windows: s.Index.Windows, Annotations: map[string]string{}, Deployments: []shownDeployment{},
	}
	for k, v := range s.Index.Annotations {
		if !strings.HasPrefix(k, "dev.longshore.") {
			r.Annotations[k] = v
		}
	}
	for i, d := range audit.Deployments(s.State.Deployments) {
		r.Deployments = append(r.Deployments, shownDeployment{d, parameterValues(s.State.Deployments[i].Document.Spec.Parameters)})
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
