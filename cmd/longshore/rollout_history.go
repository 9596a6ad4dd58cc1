package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

var rolloutHistoryCommand = command{
	name: "history", args: "[DIRECTORY]", max: 1,
	usage: "list the rollouts of a fleet: when, by whom, and with which result",
	about: "Lists the fleet's rollouts from the registry, the newest first: when each began and last changed, its phase and reason, " +
		"its number of devices, who ran it, who signed its last record, the revision of the files, and what the published states of " +
		"the devices in the files changed. With --verify-key or --policy the signers are verified, and the exit code is 5 if a " +
		"listed record has no trusted signature; otherwise the list shows what the signatures claim. For what was published " +
		"without waves too, use longshore fleet history; for a single device, longshore state history.",
	examples: []string{"--verify-key release.pub plant", "--limit 3 -o json plant"},
	flags:    slices.Concat(historyFlags("rollouts"), registryFlags, []cmdline.Flag{parallelFlag}),
	run:      (*call).rolloutHistory,
}

type rolloutHistory struct {
	Fleet      string         `json:"fleet"`
	Repository string         `json:"repository"`
	Verified   bool           `json:"verified"` // a key or a policy was given to verify signers with
	More       bool           `json:"more"`     // there are older ones
	Rollouts   []rolloutEntry `json:"rollouts"`
}

type rolloutEntry struct {
	Rollout  uint64        `json:"rollout"` // number
	Digest   digest.Digest `json:"digest"`  // of its last record
	Phase    string        `json:"phase"`
	Reason   string        `json:"reason,omitempty"`
	By       string        `json:"by,omitempty"`
	Began    string        `json:"began"`
	Changed  string        `json:"changed"`
	Revision string        `json:"revision,omitempty"` // of the files
	Waves    int           `json:"waves"`
	Devices  int           `json:"devices"`
	// Changes are those of the published states of devices in the files, compared with the states before.
	Changes []rolloutChange `json:"changes"`
	Gone    int             `json:"gone"` // published devices that are no longer in the files
	signersInfo
}

// rolloutChange is what a rollout changed on devices.
type rolloutChange struct {
	Devices []string       `json:"devices"`
	Changes []fleet.Change `json:"changes"`
}

func (r rolloutHistory) quietText() string { return r.Rollouts[0].Digest.String() }

func (r rolloutHistory) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  ROLLOUT\tBEGAN\tCHANGED\tDEVICES\t"+signedBy(r.Verified)+"\tPHASE AND CHANGES")
	for _, x := range r.Rollouts {
		fmt.Fprintf(t, "  %d\t%s\t%s\t%d\t%s\t%s\n", x.Rollout, x.Began, x.Changed, x.Devices, x.signersInfo, x.Phase)
		for _, g := range x.Changes {
			title := (&fleet.Alike{Devices: g.Devices}).Title() + ": "
			for _, change := range g.Changes {
				for _, l := range change.Lines() {
					fmt.Fprintf(t, "  \t\t\t\t\t  %s%s\n", title, l)
					title = ""
				}
			}
		}
		if x.Gone > 0 {
			fmt.Fprintf(t, "  \t\t\t\t\t  no longer in the files: %s\n", printable.Counted(x.Gone, "device"))
		}
		for _, l := range []struct{ label, text string }{{"", x.Reason}, {"run by ", x.By}, {"revision ", x.Revision}, {"! ", x.Unverified}, {"! ", x.Unread}} {
			if l.text != "" {
				fmt.Fprintf(t, "  \t\t\t\t\t  %s%s\n", l.label, oneLine(l.text))
			}
		}
	}
	_ = t.Flush() // into memory
	if r.More {
		fmt.Fprintln(w, "  and older ones")
	}
}

func (c *call) rolloutHistory(args []string) error {
	limit, err := c.historyLimit()
	if err != nil {
		return err
	}
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	signersOf, verifies, err := c.signersOf()
	if err != nil {
		return err
	}
	l := rollout.Of(f, registry.Upstream{Client: c.registry}, nil, nil)
	all, more, err := l.History(c.Context, limit)
	if err != nil {
		return err
	}
	repo, err := c.registry.OpenName(c.Context, l.Repository())
	if err != nil {
		return err
	}
	r := rolloutHistory{Fleet: f.Name, Repository: l.Repository(), Verified: verifies, More: more}
	read := rolloutStates{client: c.registry, parallel: c.Int("parallel"), at: map[artifacts.DeviceID]string{}, read: map[digest.Digest][]artifacts.Deployment{}}
	for name, devices := range f.Repositories(nil) {
		for _, id := range devices {
			read.at[id] = name
		}
	}
	for _, rec := range all {
		x := rec.Rollout
		e := rolloutEntry{
			Rollout: x.Number, Digest: rec.Digest, Phase: string(x.Phase), Reason: x.Reason, By: x.By, Began: stamp(x.Began), Changed: stamp(x.Changed),
			Revision: x.States.Annotations[ocispec.AnnotationRevision], Waves: len(x.Waves), Devices: len(x.Targets),
		}
		if e.Changes, e.Gone, err = read.changes(c.Context, x); err != nil {
			return err
		}
		if e.signersInfo, err = signersOf(c.Context, repo.Upstream(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: rec.Digest}); err != nil {
			return err
		}
		r.Rollouts = append(r.Rollouts, e)
	}
	return cmp.Or(c.show(r), unverified(r.Repository, "rollout", r.Rollouts))
}

// rolloutStates reads the states that rollouts name.
type rolloutStates struct {
	client   *registry.Client
	parallel int
	at       map[artifacts.DeviceID]string // repositories of the devices by the files: those in a record may be another user's
	mu       sync.Mutex
	read     map[digest.Digest][]artifacts.Deployment // nil: not there
}

// changes are those of the states that a rollout has published, for the devices of the files. gone is the number of its other devices.
func (s *rolloutStates) changes(ctx context.Context, x *artifacts.Rollout) (out []rolloutChange, gone int, err error) {
	all := make([][]fleet.Change, len(x.Targets))
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(max(1, s.parallel))
	for i, t := range x.Targets {
		if x.Waves[t.Wave].State == artifacts.WavePending {
			continue // nothing of it is there
		}
		if s.at[t.Device] != t.Repository {
			gone++
			continue
		}
		work.Go(func() error {
			now, err := s.deployments(ctx, t.Repository, t.Digest)
			if err != nil || now == nil {
				return err
			}
			before, err := s.deployments(ctx, t.Repository, t.Former)
			if err != nil || before == nil && t.Former != "" {
				return err
			}
			all[i], err = fleet.Compare(ctx, before, now)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return nil, 0, err
	}
	out = []rolloutChange{}
	index := map[string]int{}
	for i, t := range x.Targets {
		if all[i] == nil {
			continue
		}
		key, err := json.Marshal(all[i])
		if err != nil {
			return nil, 0, err
		}
		n, found := index[string(key)]
		if !found {
			n = len(out)
			index[string(key)], out = n, append(out, rolloutChange{Changes: all[i]})
		}
		out[n].Devices = append(out[n].Devices, string(t.Device))
	}
	return out, gone, nil
}

// deployments are those of a state; nil: it is not there, was not published yet, or is no state.
func (s *rolloutStates) deployments(ctx context.Context, repository string, state digest.Digest) ([]artifacts.Deployment, error) {
	s.mu.Lock()
	all, known := s.read[state]
	s.mu.Unlock()
	if known || state == "" {
		return all, nil
	}
	repo, err := s.client.OpenName(ctx, repository)
	if err != nil {
		return nil, err
	}
	c, err := release.Read(ctx, repo.Upstream(), state.String())
	switch {
	case release.Unfit(err):
	case err != nil:
		return nil, err
	default:
		all = append([]artifacts.Deployment{}, c.State.Deployments...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[state] = all
	return all, nil
}
