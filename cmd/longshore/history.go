package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/trust"
)

const (
	historyLines  = 20
	historyAtOnce = 4    // generations whose signatures are read at a time
	maxHistory    = 1000 // generations that are read at most
)

func deviceFlag() cli.Flag {
	return &cli.StringFlag{Name: "device", Aliases: []string{"d"}, Usage: "`ID` of the device"}
}

// stateOf reads which device is meant, and in which repository its states are.
func (p *program) stateOf(c *cli.Context, arg string) (registry.Reference, artifacts.DeviceID, error) {
	ref, err := registry.ParseReference(arg)
	if err != nil {
		return ref, "", err
	}
	if ref.Target() != "" {
		device, name := c.String("device"), strings.TrimPrefix(c.Command.HelpName, c.App.Name+" ")
		if device == "" {
			device = string(deviceOfTag(ref.Tag))
		}
		return ref, "", fault.WithHint(fmt.Errorf("%s: %s: name the repository alone, the device with --device: %w", name, arg, fault.ErrInvalid),
			"longshore "+name+" --device "+device+" "+ref.Name())
	}
	if c.String("device") == "" {
		return ref, "", misused(c, "which device? use --device")
	}
	id, err := artifacts.ParseDeviceID(c.String("device"))
	return ref, id, err
}

func (p *program) stateHistoryCommand() *cli.Command {
	return p.command("state", command{
		name: "history", args: "HOST/PATH", min: 1, max: 1,
		usage: "list the published generations of a device: when, by whom, what changed",
		about: "Lists the generations that have a history tag, the newest first: when and by whom each was signed, its deployments, " +
			"what it changed, and the revision of the files that it was made of. The one that the device's tag names is marked; a " +
			"generation that does not match its tag is reported. Signers are verified with --verify-key or --policy; then the exit " +
			"code is 5 if a listed generation has no trusted signature. Otherwise they are what the signatures claim. The command " +
			"reads from the registry, not from mirrors.",
		examples: []string{
			"--device press-07 --verify-key release.pub harbor.acme.example/plant/state",
			"--device press-07 --limit 3 -o json harbor.acme.example/plant/state",
		},
		flags: slices.Concat([]cli.Flag{deviceFlag()}, historyFlags(), registryFlags()),
		run:   p.stateHistory,
	})
}

// historyFlags choose how much of a history is listed, and whose signatures count.
func historyFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "limit", Value: historyLines, Usage: "`NUMBER` of lines, the newest first"},
		&cli.StringSliceFlag{Name: "verify-key", Usage: "public key `FILE` that may have signed them; may be repeated"},
		&cli.StringFlag{Name: "policy", Usage: "trust.yaml `FILE` to verify the signatures with"},
	}
}

func historyLimit(c *cli.Context) (int, error) {
	limit := c.Int("limit")
	if limit < 1 || limit > maxHistory {
		return 0, misused(c, "--limit %d is not from 1 to %d", limit, maxHistory)
	}
	return limit, nil
}

// signedBy is the head of a column with signers.
func signedBy(verified bool) string {
	if verified {
		return "SIGNED BY"
	}
	return "SIGNED BY (NOT VERIFIED)"
}

// seeHistory says where a device's generations are listed, to who asked for one that is not there. device is "" where only
// the tag was named.
func seeHistory(err error, device artifacts.DeviceID, ref registry.Reference) error {
	if !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != "" || device == "" && ref.Tag == "" {
		return err
	}
	if device == "" {
		device = deviceOfTag(ref.Tag)
	}
	return fault.WithHint(err, "see what there is: longshore state history --device "+string(device)+" "+ref.Name())
}

// deviceOfTag is the device that a tag of a state says; "ID" where it does not: no tag tells which id it is a digest of.
func deviceOfTag(tag string) artifacts.DeviceID {
	tag = regexp.MustCompile(`\.v[0-9]+$`).ReplaceAllString(tag, "")
	if id := artifacts.DeviceID(strings.ReplaceAll(tag, "__", "/")); tag != "" && id.Tag() == tag {
		return id
	}
	return "ID"
}

type historyResult struct {
	Device      string        `json:"device"`
	Repository  string        `json:"repository"`
	Total       int           `json:"total"`    // generations that there are
	Verified    bool          `json:"verified"` // a key or a policy was given to verify signers with
	Generations []historyLine `json:"generations"`
}

type historyLine struct {
	Generation  uint64           `json:"generation"`
	Tag         string           `json:"tag"`
	Digest      digest.Digest    `json:"digest,omitempty"`
	Current     bool             `json:"current"` // the device's tag names it
	Created     string           `json:"created,omitempty"`
	Revision    string           `json:"revision,omitempty"` // of the files that it was made of
	Expires     string           `json:"expires,omitempty"`
	Previous    digest.Digest    `json:"previous,omitempty"`
	Repeats     digest.Digest    `json:"repeats,omitempty"`            // the earlier generation whose content it has again
	Repeated    uint64           `json:"repeatedGeneration,omitempty"` // the number of that one, where it is among these
	Deployments []deploymentInfo `json:"deployments"`
	Changes     []fleet.Change   `json:"changes"`           // against what it followed; null: that is not known
	Problem     string           `json:"problem,omitempty"` // why it is not what its tag says
	signersInfo
}

func (r historyResult) essence() string {
	for _, g := range r.Generations {
		if g.Current {
			return g.Digest.String()
		}
	}
	return ""
}

func (r historyResult) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  GENERATION\tDIGEST\tPUBLISHED\t"+signedBy(r.Verified)+"\tRUNS")
	for _, g := range r.Generations {
		label := fmt.Sprint(g.Generation)
		if g.Current {
			label += " *"
		}
		var names, notes []string
		for _, d := range g.Deployments {
			names = append(names, d.Name+" "+versions(d.Components))
		}
		runs := strings.Join(names, ", ")
		switch {
		case g.Problem != "":
			runs = "! " + g.Problem
		case runs == "":
			runs = "nothing"
		}
		if g.Repeated != 0 {
			notes = append(notes, fmt.Sprintf("as generation %d", g.Repeated))
		} else if g.Repeats != "" {
			notes = append(notes, "as "+short(g.Repeats))
		}
		if g.Expires != "" {
			notes = append(notes, "expires "+g.Expires)
		}
		if len(notes) > 0 {
			runs += " (" + strings.Join(notes, ", ") + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", label, short(g.Digest), cmp.Or(g.time(), g.Created, "–"), g.signersInfo, runs)
		for _, l := range g.details() {
			fmt.Fprintf(t, "  \t\t\t\t  %s\n", l)
		}
	}
	_ = t.Flush() // the writer's own errors show when the result is printed
	if n := r.Total - len(r.Generations); n > 0 {
		fmt.Fprintf(w, "  and %d older\n", n)
	}
}

// details are the lines below a generation: what it changed, where it is from, and what is wrong with its signatures.
func (g historyLine) details() []string {
	var out []string
	for _, c := range g.Changes {
		out = append(out, c.Lines()...)
	}
	if g.Revision != "" {
		out = append(out, "revision "+oneLine(g.Revision))
	}
	for _, why := range []string{g.Unverified, g.Unread} {
		if why != "" {
			out = append(out, "! "+oneLine(why))
		}
	}
	return out
}

func (p *program) stateHistory(c *cli.Context, args []string) error {
	ref, device, err := p.stateOf(c, args[0])
	if err != nil {
		return err
	}
	limit, err := historyLimit(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	repo, err := originOf(c.Context, client, ref) // a mirror may show what was
	if err != nil {
		return err
	}
	signersOf, verifies, err := p.signersOf(c, client, trust.KindState)
	if err != nil {
		return err
	}
	all, total, err := release.History(c.Context, repo, device, limit+1) // one more: the last line says what it changed, too
	if err != nil {
		return err
	}
	if total == 0 {
		err := fmt.Errorf("%s: nothing was published for %s: %w", args[0], device, fault.ErrNotFound)
		return fault.WithHint(err, "publish a state: longshore state push --device "+string(device)+" …")
	}
	r := historyResult{Device: string(device), Repository: repo.Name(), Total: total, Verified: verifies}
	read := map[digest.Digest]*release.Published{}
	for i, g := range all {
		if g.Problem == nil {
			read[g.Digest] = &all[i]
		}
	}
	r.Generations = make([]historyLine, min(len(all), limit))
	work, ctx := errgroup.WithContext(c.Context)
	work.SetLimit(historyAtOnce)
	for i, g := range all[:len(r.Generations)] {
		work.Go(func() (err error) {
			r.Generations[i], err = describeGeneration(ctx, g, read)
			if err == nil && g.Problem == nil {
				r.Generations[i].signersInfo, err = signersOf(ctx, repo, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: g.Digest})
			}
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	if err := p.show(c, r); err != nil {
		return err
	}
	unverified := 0
	for _, g := range r.Generations {
		if g.Unverified != "" {
			unverified++
		}
	}
	if unverified > 0 {
		return outcome.WithCode(fmt.Errorf("%s: %d of %s have no trusted signature", repo.Name(), unverified, fleet.Counted(len(r.Generations), "generation")), outcome.Verification)
	}
	return nil
}

// describeGeneration is a line about one generation, without its signers; read are the generations that are known.
func describeGeneration(ctx context.Context, g release.Published, read map[digest.Digest]*release.Published) (historyLine, error) {
	line := historyLine{
		Generation: g.Generation, Tag: g.Tag, Digest: g.Digest, Current: g.Current, Previous: g.Previous, Repeats: g.Repeats, Revision: g.Revision,
		Deployments: []deploymentInfo{}, Created: stamp(g.Created), Expires: stamp(g.Expires), signersInfo: signersInfo{Signers: []signerInfo{}},
	}
	if x := read[g.Repeats]; x != nil {
		line.Repeated = x.Generation
	}
	if g.Problem != nil {
		line.Problem = g.Problem.Error()
		return line, nil
	}
	for _, d := range g.Deployments {
		line.Deployments = append(line.Deployments, describeDeployment(d))
	}
	var before []artifacts.Deployment
	if x := read[g.Previous]; x != nil {
		before = x.Deployments
	} else if g.Previous != "" {
		return line, nil
	}
	changes, err := fleet.Compare(ctx, before, g.Deployments)
	line.Changes = append([]fleet.Change{}, changes...)
	return line, err
}

// stamp writes a time for machines; "" for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func (p *program) stateRollbackCommand() *cli.Command {
	return p.command("state", command{
		name: "rollback", args: "HOST/PATH", min: 1, max: 1,
		usage: "publish an earlier generation's content as a new one",
		about: "Devices reject generations below the one that they accepted. So a rollback is a new generation with the deployments " +
			"of an earlier one, the same pinned components, and a note of which one it repeats. The earlier state must be signed " +
			"like the current one: by --key, --verify-key, or as --policy requires. Before it publishes, the command checks that " +
			"everything that the device would load is still in its registry and in the mirrors of --mirror, and that --policy " +
			"accepts it; otherwise the exit code is 6.",
		examples: []string{
			"--device press-07 --to 41 --key release.key harbor.acme.example/plant/state",
			"--device press-07 --to 41 --key release.key --verify-key old-release.pub harbor.acme.example/plant/state",
		},
		flags: slices.Concat([]cli.Flag{
			deviceFlag(),
			&cli.Uint64Flag{Name: "to", Usage: "`NUMBER` of the generation to roll back to; required", DefaultText: "none"},
		}, nextFlags(), vouchFlags("the states", "; also checks components and images"), contentFlags(), proposalFlags(), signFlags(), registryFlags()),
		run: p.stateRollback,
	})
}

func (p *program) stateRollback(c *cli.Context, args []string) error {
	ref, device, err := p.stateOf(c, args[0])
	if err != nil {
		return err
	}
	if c.Uint64("to") == 0 {
		return misused(c, "to which generation? use --to; longshore state history lists them")
	}
	if err := whoSigns(c); err != nil {
		return err
	}
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	return p.publishOne(c, s, ref, fleet.One{Device: device, To: c.Uint64("to")}, nil)
}
