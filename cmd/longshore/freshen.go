package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

const maxRecord = 64 << 20 // bytes of --record: a line for each device

var freshenCommand = command{
	name: "freshen", args: "HOST/PATH[:TAG]...", min: 1, max: -1,
	usage: "sign freshness statements for states",
	about: "Signs for each device's tag a statement that it names the newest generation, which is valid for the time of --for. With " +
		"a freshness policy, devices then detect that new states are withheld. Run the command from a schedule: a statement " +
		"that is valid for more than half of --for is not renewed, expired statements of the same key are deleted if the " +
		"registry allows it, and the exit code shows whether every state is fresh. A tag that was moved back to an older " +
		"generation is an error; with --record also if the newer generation was deleted. Use a key that signs nothing else. " +
		"With --keyless also use --trusted-root: without it, every run signs new statements.",
	examples: []string{
		"--key pulse.key --for 48h harbor.acme.example/plant/state:press-07",
		"--key pulse.key --for 48h --verify-key release.pub --record freshness.json --all -o json harbor.acme.example/plant/state",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "for", Value: 48 * time.Hour, Usage: "`TIME` that a statement is valid"},
		{Name: "all", Value: false, Usage: "sign for all devices in the repository"},
		{Name: "record", Usage: "`FILE` that stores the newest generation of each state between runs"},
		{Name: "verify-key", Value: []string(nil), Usage: "public key `FILE` that must have signed the states; may be repeated"},
		{Name: "policy", Usage: "trust.yaml `FILE` that must accept the states' signatures"},
	}, keyFlags, keylessFlags, registryFlags), // no signature format: the statement has that of the state's signatures
	run: (*call).freshen,
}

// Outcomes of freshening one state.
const (
	freshRenewed = "renewed"
	freshEnough  = "fresh" // valid for more than half of --for
	freshFailed  = "failed"
)

type freshenResult struct {
	Renewed int          `json:"renewed"`
	Fresh   int          `json:"fresh"` // not renewed, because they are valid for long enough
	Failed  int          `json:"failed"`
	States  []freshState `json:"states"`
	Skipped []string     `json:"skipped,omitempty"` // with --all: tags that are not tags of devices
	Notes   []string     `json:"notes,omitempty"`
}

type freshState struct {
	Reference  string        `json:"reference"`
	Device     string        `json:"device,omitempty"`
	Generation uint64        `json:"generation,omitempty"`
	Digest     digest.Digest `json:"digest,omitempty"`
	Outcome    string        `json:"outcome"`
	IssuedAt   string        `json:"issuedAt,omitempty"`
	NotAfter   string        `json:"notAfter,omitempty"`
	Pruned     int           `json:"pruned,omitempty"` // expired statements that were deleted
	Error      string        `json:"error,omitempty"`

	err error
}

func (r freshenResult) quietText() string {
	var all []string
	for _, s := range r.States {
		if s.Outcome == freshRenewed {
			all = append(all, s.Digest.String())
		}
	}
	return strings.Join(all, "\n")
}

const shownStates = 20

func (r freshenResult) text(w io.Writer) {
	shown := 0
	for _, s := range r.States {
		switch {
		case s.Outcome == freshFailed:
			row(w, s.Outcome, "%s", s.Reference) // the error is on stderr, or in JSON
			continue
		case shown == shownStates:
			row(w, "", "and more; -o json lists them all")
		case shown < shownStates:
			row(w, s.Outcome, "%s  generation %d (%s) until %s", s.Reference, s.Generation, printable.Digest(s.Digest), s.NotAfter)
		}
		shown++
	}
	rows(w, "note", r.Notes)
	row(w, "in all", "%d renewed, %d still fresh, %d failed", r.Renewed, r.Fresh, r.Failed)
}

// freshener is one run of the command.
type freshener struct {
	*call
	life    time.Duration
	now     time.Time
	trusted verifyState
	record  *generationRecord

	noPrune atomic.Bool // the registry does not allow deletion
}

func (c *call) freshen(args []string) error {
	f, err := c.newFreshener()
	if err != nil {
		return err
	}
	r := freshenResult{States: []freshState{}}
	type job struct {
		repo *registry.Repository
		from release.Repository
		tag  string
	}
	var jobs []job
	for _, arg := range args {
		ref, err := registry.ParseReference(arg)
		if err != nil {
			return err
		}
		if (ref.Target() == "") != c.Bool("all") || ref.Digest != "" {
			return c.misused("%s: name one state as HOST/PATH:TAG, or a repository with --all", arg)
		}
		repo, err := c.upstream(ref)
		if err != nil {
			return err
		}
		from := c.listedOnce(repo)
		if ref.Tag != "" {
			jobs = append(jobs, job{repo, from, ref.Tag})
			continue
		}
		tags, err := from.Tags(c.Context)
		if err != nil {
			return err
		}
		for _, t := range tags {
			if !otherTags.MatchString(t) {
				jobs = append(jobs, job{repo, from, t})
			}
		}
	}
	states := make([]*freshState, len(jobs))
	var g errgroup.Group
	g.SetLimit(max(1, c.Int("concurrency")))
	for i, j := range jobs {
		g.Go(func() error {
			states[i] = f.one(c.Context, j.repo, j.from, j.tag, c.Bool("all"))
			return nil
		})
	}
	_ = g.Wait() // no error: each state has its own
	var first error
	for i, s := range states {
		switch {
		case s == nil:
			r.Skipped = append(r.Skipped, jobs[i].repo.Name()+":"+jobs[i].tag)
			continue
		case s.err != nil:
			s.Outcome, s.Error = freshFailed, fault.Summary(s.err)
			r.Failed++
			if first == nil || errors.Is(first, fault.ErrTemporary) && !errors.Is(s.err, fault.ErrTemporary) {
				first = s.err
			}
		case s.Outcome == freshRenewed:
			r.Renewed++
		default:
			r.Fresh++
		}
		r.States = append(r.States, *s)
	}
	if f.noPrune.Load() {
		r.Notes = append(r.Notes, "the registry does not allow the deletion of expired statements")
	}
	if err := f.record.save(); err != nil {
		return err
	}
	if err := c.show(r); err != nil {
		return err
	}
	switch {
	case r.Failed > 1:
		return fmt.Errorf("freshen: %d of %d states failed, the first: %w", r.Failed, len(r.States), first)
	case len(r.States) == 0:
		err := fmt.Errorf("freshen: there are no states of devices: %w", fault.ErrNotFound)
		return fault.WithHint(err, "publish one: longshore state push --device DEVICE …")
	}
	return first
}

// otherTags are tags that never name a device's state: history, device reports, and signatures.
var otherTags = strict.Expression(`\.v[1-9][0-9]*$|\.current$|^sha256-[0-9a-f]{64}`)

func (c *call) newFreshener() (*freshener, error) {
	f := &freshener{call: c, life: c.Duration("for").Truncate(time.Second), now: c.now().UTC().Truncate(time.Second)}
	if f.life < time.Minute || f.life > signing.MaxFreshness {
		return nil, c.misused("--for %v is not from 1m to %v", c.Duration("for"), signing.MaxFreshness)
	}
	if err := c.mustSign(false); err != nil {
		return nil, err
	}
	var err error
	if f.trusted, err = c.stateVerifier(nil); err != nil { // the key for freshness signs no states
		return nil, err
	}
	f.record, err = readRecord(c.String("record"))
	return f, err
}

// one handles one state; nil if the tag is not one of a device, with --all.
func (f *freshener) one(ctx context.Context, repo *registry.Repository, from release.Repository, tag string, all bool) *freshState {
	s := &freshState{Reference: repo.Reference().WithTag(tag).String()}
	is, err := release.Open(ctx, repo, tag)
	if err != nil {
		if all && errors.Is(err, fault.ErrUnsupported) {
			return nil
		}
		s.err = err
		return s
	}
	device := is.Index.Device
	s.Device = string(device)
	if device.Tag() != tag {
		if all {
			return nil
		}
		s.err = fmt.Errorf("%s is the state of %s, whose tag is %s: %w", s.Reference, device, device.Tag(), fault.ErrConflict)
		return s
	}
	cur, err := release.Newest(ctx, from, device, f.trusted.of(repo))
	if err != nil {
		s.err = fmt.Errorf("freshen %s: %w", s.Reference, err)
		return s
	}
	s.Generation, s.Digest = cur.Index.Generation, cur.Descriptor.Digest
	if s.err = f.record.check(s.Reference, s.Generation, s.Digest); s.err != nil {
		return s
	}
	s.err = f.renew(ctx, repo, cur, tag, s)
	if s.err == nil {
		f.record.note(s.Reference, s.Generation, s.Digest)
	}
	return s
}

// renew signs a statement, unless a valid one lasts long enough, and deletes expired ones.
func (f *freshener) renew(ctx context.Context, repo *registry.Repository, cur *release.Current, tag string, s *freshState) error {
	q := signing.FreshnessQuery{Tag: tag, Generation: s.Generation}
	if self := f.signer.Self(); self != nil {
		q.Verifiers = append(q.Verifiers, self)
	}
	lasts := func(all []signing.FreshnessSignature) *signing.FreshnessSignature {
		for i := range all {
			if all[i].NotAfter.Sub(f.now) > f.life/2 && !all[i].IssuedAt.After(f.now) {
				return &all[i]
			}
		}
		return nil
	}
	at, err := f.signaturesOf(ctx, repo)
	if err != nil {
		return fmt.Errorf("freshen %s: %w", s.Reference, err)
	}
	if f.noPrune.Load() {
		q.Enough = func(all []signing.FreshnessSignature) bool { return lasts(all) != nil }
	}
	var there []signing.FreshnessSignature
	if len(q.Verifiers) > 0 { // an identity without a trusted root cannot find its earlier statements
		there, err = signing.FindFreshness(ctx, at, cur.Descriptor, q)
	}
	if err != nil && !errors.Is(err, fault.ErrUnsigned) && !errors.Is(err, fault.ErrBadSignature) && !errors.Is(err, fault.ErrTooLarge) {
		return fmt.Errorf("freshen %s: %w", s.Reference, err)
	}
	if l := lasts(there); l != nil {
		s.Outcome, s.IssuedAt, s.NotAfter = freshEnough, stamp(l.IssuedAt), stamp(l.NotAfter)
	} else {
		said := signing.Freshness{Tag: tag, Generation: s.Generation, IssuedAt: f.now, NotAfter: f.now.Add(f.life)}
		statement, err := sign.NewFreshness(said)
		if err != nil {
			return err
		}
		if _, err := f.signer.Attest(ctx, repo, cur.Descriptor, statement, f.ended(there)...); err != nil {
			return fmt.Errorf("freshen %s: %w", s.Reference, err)
		}
		s.Outcome, s.IssuedAt, s.NotAfter = freshRenewed, stamp(said.IssuedAt), stamp(said.NotAfter)
	}
	for _, old := range there {
		if f.noPrune.Load() || f.now.Before(old.NotAfter) || old.Format == signing.FormatLegacy {
			continue
		}
		switch err := at.RemoveReferrer(ctx, cur.Descriptor, old.Digest); {
		case err == nil:
			s.Pruned++
		case errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil:
			return nil // the next run deletes it
		default:
			f.noPrune.Store(true) // not allowed, which does no harm
		}
	}
	return nil
}

// ended lists expired statements in cosign's older format, which the new one replaces.
func (f *freshener) ended(all []signing.FreshnessSignature) []digest.Digest {
	var out []digest.Digest
	for _, s := range all {
		if s.Format == signing.FormatLegacy && !f.now.Before(s.NotAfter) {
			out = append(out, s.Digest)
		}
	}
	return out
}

// generationRecord stores the newest generation of each state in a file outside the registry: an attacker with write access to
// the registry can delete a newer generation with its history, but cannot change this file.
type generationRecord struct {
	file string // "": nothing is stored

	mu      sync.Mutex
	changed bool
	States  map[string]recordedState `json:"states"`
}

type recordedState struct {
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
}

func readRecord(file string) (*generationRecord, error) {
	r := &generationRecord{file: file, States: map[string]recordedState{}}
	if file == "" {
		return r, nil
	}
	data, err := bounded.File(os.Open, file, maxRecord)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	r.States = nil
	if err := json.Unmarshal(data, r); err != nil || r.States == nil {
		err := fmt.Errorf("%s: %w: it is not a file of --record", file, fault.ErrInvalid)
		return nil, fault.WithHint(err, "restore the file of the last run; a new file does not know earlier generations")
	}
	return r, nil
}

func (r *generationRecord) check(reference string, generation uint64, d digest.Digest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.States[reference]
	switch {
	case known && generation < old.Generation:
		err := fmt.Errorf("freshen %s: the tag names generation %d, but %s has %d: %w", reference, generation, r.file, old.Generation, fault.ErrRollback)
		return fault.WithHint(err, "an attacker, or a restored backup, moved the tag back and removed newer generations: publish a new one")
	case known && generation == old.Generation && d != old.Digest:
		return fmt.Errorf("freshen %s: generation %d is %s, but %s has %s: %w", reference, generation, d, r.file, old.Digest, fault.ErrConflict)
	}
	return nil
}

func (r *generationRecord) note(reference string, generation uint64, d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is := (recordedState{generation, d}); r.States[reference] != is {
		r.States[reference], r.changed = is, true
	}
}

// save replaces the file.
func (r *generationRecord) save() error {
	if r.file == "" || !r.changed {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return files.Write(r.file, append(data, '\n'), 0o600)
}
