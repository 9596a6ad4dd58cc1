package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
)

// publishedTogether is the longest time between two states of one publication.
const publishedTogether = time.Hour

var fleetHistoryCommand = command{
	name: "history", args: "[DIRECTORY]", max: 1,
	usage: "list what was published for a fleet: when, by whom, what changed",
	about: "Lists the publications for the devices of the files, the newest first: when and by whom the states were signed, on which " +
		"devices, their changes, and the revision of the source files. States with the same signers, changes and revision are one " +
		"publication if all were signed within an hour. The command reads up to --limit generations of every device. With --verify-key or --policy the signers are verified, and the exit code is 5 " +
		"if a listed state has no trusted signature; otherwise the list shows what the signatures claim. Of the files the command uses " +
		"only the names of devices and repositories. For the result of each rollout in waves, use longshore fleet rollout history.",
	examples: []string{"--verify-key release.pub plant", "--select site=graz --limit 3 -o json plant"},
	flags:    slices.Concat(historyFlags("publications"), registryFlags, []cmdline.Flag{selectFlag, parallelFlag}),
	run:      (*call).fleetHistory,
}

type fleetHistory struct {
	Fleet        string        `json:"fleet"`
	Verified     bool          `json:"verified"` // a key or a policy was given to verify signers with
	More         bool          `json:"more"`     // there are older ones
	Publications []publication `json:"publications"`
}

// publication is a set of states that were published together.
type publication struct {
	Time    string       `json:"time,omitempty"` // of the last of its states: signed, otherwise created
	Repeats bool         `json:"repeats"`        // the states have the content of earlier ones
	States  []fleetState `json:"states"`
	// Of several states with a problem or without a trusted signature, the texts are those of one.
	contentInfo
}

func (r fleetHistory) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  PUBLISHED\t"+signedBy(r.Verified)+"\tDEVICES\tCHANGES")
	for _, p := range r.Publications {
		var devices []string
		for _, s := range p.States {
			devices = append(devices, s.Device)
		}
		lines := p.lines()
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", cmp.Or(p.Time, "–"), p.signersInfo, (&fleet.Alike{Devices: devices}).Title(), lines[0])
		for _, l := range lines[1:] {
			fmt.Fprintf(t, "  \t\t\t%s\n", l)
		}
	}
	_ = t.Flush() // into memory
	if r.More {
		fmt.Fprintln(w, "  and older ones")
	}
}

// lines are what people read of a publication: at least one.
func (p publication) lines() []string {
	one := p.contentInfo
	if n := len(p.States) - 1; n > 0 {
		for _, text := range []*string{&one.Problem, &one.Unverified, &one.Unread} {
			if *text != "" {
				*text += fmt.Sprintf(" (and %d more)", n)
			}
		}
	}
	out := one.details()
	switch {
	case p.Problem != "":
		out = slices.Insert(out, 0, "! "+one.Problem)
	case p.Changes == nil:
		out = slices.Insert(out, 0, "changes unknown: the state before is not there")
	case len(p.Changes) == 0:
		out = slices.Insert(out, 0, "no application changes")
	}
	out = append(out, p.valid()...)
	if p.Repeats {
		out = append(out, "repeats earlier states")
	}
	return out
}

// listed is a repository whose tags are listed only once for all of its devices.
type listed struct {
	*registry.Repository
	tags func() ([]string, error)
}

func (c *call) listedOnce(repo *registry.Repository) listed {
	return listed{repo, sync.OnceValues(func() ([]string, error) { return repo.Tags(c.Context) })}
}

// Tags implements release.Repository.
func (l listed) Tags(context.Context) ([]string, error) { return l.tags() }

// fleetLine is a generation of one device.
type fleetLine struct {
	state fleetState
	historyLine
}

func (c *call) fleetHistory(args []string) error {
	limit, err := c.historyLimit()
	if err != nil {
		return err
	}
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	choose, err := c.selected()
	if err != nil {
		return err
	}
	of, verifies, err := c.signersOf()
	if err != nil {
		return err
	}
	at := f.Repositories(choose)
	if len(at) == 0 && choose != nil {
		return c.noneSelected()
	}
	all, more, err := c.fleetLines(at, limit, of)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fault.WithHint(fmt.Errorf("fleet %s: no state was published for its devices: %w", f.Name, fault.ErrNotFound), "publish the fleet: longshore fleet publish")
	}
	r := fleetHistory{Fleet: f.Name, Verified: verifies, Publications: publications(all)}
	if n := len(r.Publications); n > limit {
		r.Publications, more = r.Publications[:limit], true
	}
	r.More = more
	return cmp.Or(c.show(r), unverified(f.Name, "publication", r.Publications))
}

// fleetLines reads the newest generations of devices by their repositories, at most limit of each: no line of the history has two of
// one device. more reports whether there are older ones.
func (c *call) fleetLines(at map[string][]artifacts.DeviceID, limit int, of findSigners) (all []fleetLine, more bool, err error) {
	repositories := map[string]listed{}
	for name := range at {
		repo, err := c.registry.OpenName(c.Context, name)
		if err != nil {
			return nil, false, err
		}
		repositories[name] = c.listedOnce(repo.Upstream()) // a mirror may show old content
	}
	work, ctx := errgroup.WithContext(c.Context)
	work.SetLimit(max(1, c.Int("parallel")))
	var mu sync.Mutex
	for name, devices := range at {
		from := repositories[name]
		for _, id := range devices {
			work.Go(func() error {
				lines, total, err := readGenerations(ctx, from.Repository, from, id, limit, of)
				mu.Lock()
				defer mu.Unlock()
				more = more || total > len(lines)
				for _, l := range lines {
					all = append(all, fleetLine{fleetState{string(id), name + ":" + l.Tag, l.Generation, l.Digest}, l})
				}
				return err
			})
		}
	}
	err = work.Wait()
	return all, more, err
}

// publications gathers the generations of devices that were published together, the newest first.
func publications(all []fleetLine) []publication {
	slices.SortFunc(all, func(a, b fleetLine) int {
		return cmp.Or(-strings.Compare(a.when(), b.when()), -cmp.Compare(a.Generation, b.Generation), strings.Compare(a.state.Device, b.state.Device))
	})
	var out []*publication
	open := map[string]*publication{}
	for _, l := range all {
		key := l.key()
		p := open[key]
		if p == nil || apart(p.Time, l.when()) || slices.ContainsFunc(p.States, func(s fleetState) bool { return s.Device == l.state.Device }) {
			p = &publication{Time: l.when(), Repeats: l.Repeats != "", contentInfo: l.contentInfo}
			open[key], out = p, append(out, p)
		}
		p.States = append(p.States, l.state)
	}
	sorted := make([]publication, len(out))
	for i, p := range out {
		slices.SortFunc(p.States, func(a, b fleetState) int { return strings.Compare(a.Device, b.Device) })
		sorted[i] = *p
	}
	return sorted
}

// when is the time of its first signature, otherwise of its creation; "": unknown.
func (l fleetLine) when() string { return cmp.Or(l.time(), l.Created) }

// key is equal for generations of one publication: it has no times, and no texts that name a generation.
func (l fleetLine) key() string {
	x := l.contentInfo
	x.Signers = slices.Clone(x.Signers)
	for i := range x.Signers {
		x.Signers[i].Time = ""
	}
	set := [4]bool{l.Repeats != "", x.Problem != "", x.Unverified != "", x.Unread != ""}
	x.Problem, x.Unverified, x.Unread = "", "", ""
	data, err := json.Marshal([]any{x, set})
	if err != nil {
		return l.state.Reference // never: they are plain values
	}
	return string(data)
}

// apart reports whether two times are of different publications.
func apart(a, b string) bool {
	x, errA := time.Parse(time.RFC3339, a)
	y, errB := time.Parse(time.RFC3339, b)
	return (errA == nil) != (errB == nil) || errA == nil && x.Sub(y) > publishedTogether
}
