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
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/audit"
)

const (
	historyLines  = 20
	historyAtOnce = 4    // generations whose signatures are read at a time
	maxHistory    = 1000 // generations that are read at most
)

var deviceFlag = cmdline.Flag{Name: "device", Alias: "d", Usage: "`ID` of the device", Offer: offerDevices}

// stateOf returns the repository of states, and the device of --device.
func (c *call) stateOf(arg string) (registry.Reference, artifacts.DeviceID, error) {
	ref, err := registry.ParseReference(arg)
	if err != nil {
		return ref, "", err
	}
	if ref.Target() != "" {
		device, name := cmp.Or(c.String("device"), string(deviceOfTag(ref.Tag))), c.Command
		return ref, "", fault.WithHint(fmt.Errorf("%s: %s: name the repository only, and the device with --device: %w", name, arg, fault.ErrInvalid),
			"longshore "+name+" --device "+device+" "+ref.Place())
	}
	if c.String("device") == "" {
		return ref, "", c.misused("use --device ID")
	}
	id, err := artifacts.ParseDeviceID(c.String("device"))
	return ref, id, err
}

var stateHistoryCommand = command{
	name: "history", args: "HOST/PATH", min: 1, max: 1,
	usage: "list the published generations of a device: when, by whom, what changed",
	about: "Lists the generations with a history tag, the newest first: when and by whom each was signed, its deployments, its changes, " +
		"and the revision of its source files. * marks the generation that the device's tag names; a generation that does not " +
		"match its tag is reported. With --verify-key or --policy the signers are verified, and the exit code is 5 if a listed " +
		"generation has no trusted signature; otherwise the list shows what the signatures claim. The command reads from the " +
		"registry, not from mirrors.",
	examples: []string{
		"--device press-07 --verify-key release.pub harbor.acme.example/plant/state",
		"--device press-07 --limit 3 -o json harbor.acme.example/plant/state",
	},
	flags: slices.Concat([]cmdline.Flag{deviceFlag}, historyFlags("generations"), registryFlags),
	run:   (*call).stateHistory,
}

// historyFlags choose how much of a history is listed, and who must have signed it.
func historyFlags(of string) []cmdline.Flag {
	return []cmdline.Flag{
		{Name: "limit", Value: historyLines, Usage: "`NUMBER` of " + of + ", the newest first"},
		{Name: "verify-key", Value: []string(nil), Usage: "public key `FILE` that may have signed them; may be repeated"},
		{Name: "policy", Usage: "trust.yaml `FILE` to verify the signatures with"},
	}
}

func (c *call) historyLimit() (int, error) {
	limit := c.Int("limit")
	if limit < 1 || limit > maxHistory {
		return 0, c.misused("--limit %d is not from 1 to %d", limit, maxHistory)
	}
	return limit, nil
}

// signedBy is the heading of a column with signers.
func signedBy(verified bool) string {
	if verified {
		return "SIGNED BY"
	}
	return "SIGNED BY (NOT VERIFIED)"
}

// hintHistory adds a hint to the error about a missing generation. device is "" if only its tag is known.
func hintHistory(err error, device artifacts.DeviceID, ref registry.Reference) error {
	if !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != "" || device == "" && ref.Tag == "" {
		return err
	}
	return fault.WithHint(err, "list all generations: longshore state history --device "+string(cmp.Or(device, deviceOfTag(ref.Tag)))+" "+ref.Place())
}

// deviceOfTag is the device of a state's tag; "ID" if the tag is a digest of the id.
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
	Total       int           `json:"total"`    // generations in the registry
	Verified    bool          `json:"verified"` // a key or a policy was given to verify signers with
	Generations []historyLine `json:"generations"`
}

type historyLine struct {
	Generation  uint64             `json:"generation"`
	Tag         string             `json:"tag"`
	Digest      digest.Digest      `json:"digest,omitempty"`
	Current     bool               `json:"current"` // the device's tag names it
	Created     string             `json:"created,omitempty"`
	Previous    digest.Digest      `json:"previous,omitempty"`
	Repeats     digest.Digest      `json:"repeats,omitempty"`            // the earlier generation with the same content
	Repeated    uint64             `json:"repeatedGeneration,omitempty"` // its number, if it is listed
	Deployments []audit.Deployment `json:"deployments"`
	contentInfo
}

// contentInfo is what generations of one publication have in common.
type contentInfo struct {
	Revision string           `json:"revision,omitempty"` // of the source files
	Expires  string           `json:"expires,omitempty"`
	Windows  schedule.Windows `json:"windows,omitzero"`
	Changes  []fleet.Change   `json:"changes"`           // compared with the predecessor; null: unknown
	Problem  string           `json:"problem,omitempty"` // why it does not match its tag
	signersInfo
}

func (r historyResult) quietText() string {
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
		var names []string
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
		if notes := g.notes(); notes != "" {
			runs += " (" + notes + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", label, printable.Digest(g.Digest), cmp.Or(g.time(), g.Created, "–"), g.signersInfo, runs)
		for _, l := range g.details() {
			fmt.Fprintf(t, "  \t\t\t\t  %s\n", l)
		}
	}
	_ = t.Flush() // the writer's own errors show when the result is printed
	if n := r.Total - len(r.Generations); n > 0 {
		fmt.Fprintf(w, "  and %d older\n", n)
	}
}

// notes tell what a generation repeats, and when it is valid; "": nothing to tell.
func (g historyLine) notes() string {
	var notes []string
	if g.Repeated != 0 {
		notes = append(notes, fmt.Sprintf("repeats generation %d", g.Repeated))
	} else if g.Repeats != "" {
		notes = append(notes, "repeats "+printable.Digest(g.Repeats))
	}
	return strings.Join(append(notes, g.valid()...), ", ")
}

// valid tells when the content is valid.
func (g contentInfo) valid() []string {
	var notes []string
	if g.Expires != "" {
		notes = append(notes, "expires "+g.Expires)
	}
	if !g.Windows.Always() {
		notes = append(notes, "windows "+g.Windows.String())
	}
	return notes
}

// details are the lines below a generation: its changes, its source, and errors of its signatures.
func (g contentInfo) details() []string {
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

func (c *call) stateHistory(args []string) error {
	ref, device, err := c.stateOf(args[0])
	if err != nil {
		return err
	}
	limit, err := c.historyLimit()
	if err != nil {
		return err
	}
	repo, err := c.upstream(ref) // a mirror may show old content
	if err != nil {
		return err
	}
	signersOf, verifies, err := c.signersOf()
	if err != nil {
		return err
	}
	r := historyResult{Device: string(device), Repository: ref.Place(), Verified: verifies}
	if r.Generations, r.Total, err = readGenerations(c.Context, repo, repo, device, limit, signersOf); err != nil {
		return err
	}
	if r.Total == 0 {
		err := fmt.Errorf("%s: no state was published for %s: %w", args[0], device, fault.ErrNotFound)
		return fault.WithHint(err, "publish a state: longshore state push --device "+string(device)+" …")
	}
	return cmp.Or(c.show(r), unverified(ref.Place(), "generation", r.Generations))
}

// readGenerations reads the newest generations of a device, at most limit, and returns their total number; from is repo, or knows its tags.
func readGenerations(ctx context.Context, repo *registry.Repository, from release.Repository, device artifacts.DeviceID, limit int, of findSigners) ([]historyLine, int, error) {
	all, total, err := release.History(ctx, from, device, limit+1) // one more, to show the changes of the last one
	if err != nil {
		return nil, 0, err
	}
	read := map[digest.Digest]*release.Published{}
	for i, g := range all {
		if g.Problem == nil {
			read[g.Digest] = &all[i]
		}
	}
	out := make([]historyLine, min(len(all), limit))
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(historyAtOnce)
	for i, g := range all[:len(out)] {
		work.Go(func() (err error) {
			out[i], err = describeGeneration(ctx, g, read)
			if err == nil && g.Problem == nil {
				out[i].signersInfo, err = of(ctx, repo, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: g.Digest})
			}
			return err
		})
	}
	return out, total, work.Wait()
}

// describeGeneration describes one generation without its signers; read are the generations that were read.
func describeGeneration(ctx context.Context, g release.Published, read map[digest.Digest]*release.Published) (historyLine, error) {
	line := historyLine{
		Generation: g.Generation, Tag: g.Tag, Digest: g.Digest, Current: g.Current, Previous: g.Previous, Repeats: g.Repeats,
		Deployments: []audit.Deployment{}, Created: stamp(g.Created),
		contentInfo: contentInfo{Revision: g.Revision, Expires: stamp(g.Expires), Windows: g.Windows, signersInfo: signersInfo{Signers: []signerInfo{}}},
	}
	if x := read[g.Repeats]; x != nil {
		line.Repeated = x.Generation
	}
	if g.Problem != nil {
		line.Problem = fault.Summary(g.Problem)
		return line, nil
	}
	line.Deployments = audit.Deployments(g.Deployments)
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

// stamp formats a time for machines; "" for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

var stateRollbackCommand = command{
	name: "rollback", args: "HOST/PATH", min: 1, max: 1,
	usage: "publish an earlier generation again, as a new one",
	about: "Devices refuse generations below the one that they accepted. So a rollback is a new generation with the deployments and " +
		"pinned components of an earlier one; an annotation names the generation that it repeats. The earlier state must be " +
		"signed by --key, by --verify-key, or as --policy requires. Before it publishes, the command checks that everything that " +
		"the device would load is still in its registry and in the mirrors of --mirror, and that --policy accepts it; otherwise " +
		"the exit code is 6.",
	examples: []string{
		"--device press-07 --to 41 --key release.key harbor.acme.example/plant/state",
		"--device press-07 --to 41 --key release.key --verify-key old-release.pub harbor.acme.example/plant/state",
	},
	flags: slices.Concat([]cmdline.Flag{
		deviceFlag,
		{Name: "to", Value: uint64(0), Usage: "`NUMBER` of the generation to roll back to; required", Default: "none"},
	}, nextFlags, signedByFlags("the states", "; also checks components and images"), contentFlags, proposalFlags, signFlags, registryFlags),
	run: (*call).stateRollback,
}

func (c *call) stateRollback(args []string) error {
	ref, device, err := c.stateOf(args[0])
	if err != nil {
		return err
	}
	if c.Uint64("to") == 0 {
		return c.misused("use --to; longshore state history lists the generations")
	}
	if err := c.openPublisher(false); err != nil {
		return err
	}
	return c.publishOne(ref, fleet.One{Device: device, To: c.Uint64("to")}, nil)
}
