package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/current"
)

// maxSeen bounds the file of reports that were seen: 100,000 devices have 20 MB.
const maxSeen = 32 << 20

const reportCategory = "Device reports"

func deviceReportFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "state-key", Category: reportCategory, Usage: "public key `FILE`; the state that the device runs must be signed with it; may be repeated, one signature is enough"},
		&cli.StringFlag{Name: "seen", Category: reportCategory, Usage: "`FILE` with the newest report of each device, which the command creates and updates; older reports are rejected"},
		&cli.Uint64Flag{Name: "after", Category: reportCategory, Usage: "reject a report with a lower number than `NUMBER`"},
		&cli.DurationFlag{Name: "max-age", Category: reportCategory, Usage: "reject a report that is older than this `TIME`, by the device's clock; 0 means any age"},
	}
}

// reportResult is what a device said of itself, and what was checked of it.
type reportResult struct {
	Reference  string `json:"reference"`
	Digest     string `json:"digest"` // of the report
	Verified   bool   `json:"verified"`
	Key        string `json:"key"` // fingerprint of the device's key
	AgeSeconds int64  `json:"ageSeconds"`
	*artifacts.CurrentState
	State *verifyResult `json:"state,omitempty"` // the state that runs; left out: not asked for
	Notes []string      `json:"notes"`
}

func (r reportResult) essence() string { return r.Digest }

func (r reportResult) text(w io.Writer) {
	fmt.Fprintf(w, "report %d of %s\n", r.Counter, r.Device)
	row(w, "signed", "by the device's key (%s), %s by its clock, %s ago", short(digest.Digest(r.Key)), stamp(r.Time), time.Duration(r.AgeSeconds)*time.Second)
	for _, g := range []struct {
		label string
		*artifacts.CurrentGeneration
	}{{"runs", r.Running}, {"accepted", r.Accepted}, {"committed", r.Committed}} {
		if g.CurrentGeneration != nil && (g.CurrentGeneration == r.Running || r.Running == nil || *g.CurrentGeneration != *r.Running) {
			row(w, g.label, "generation %d (%s)", g.Generation, short(g.Digest))
		}
	}
	if r.Running == nil {
		row(w, "runs", "nothing")
	}
	if x := r.Refused; x != nil {
		row(w, "rejected", "%s (%s) since %s: %s", short(x.Digest), x.Code, stamp(x.Since), oneLine(x.Message))
	}
	var top branch
	for _, d := range r.Deployments {
		at := top.add("%s  %s since %s", oneLine(d.Name), d.State, stamp(d.Since))
		if d.Error != nil {
			at.add("%s: %s", d.Error.Code, oneLine(d.Error.Message))
		}
		for _, c := range d.Components {
			below := at.add("%s %s  %s  %s", oneLine(c.Name), oneLine(c.Revision), short(c.Digest), c.State)
			for _, i := range c.Images {
				below.add("%s  %d running", i.Image, i.Containers)
			}
		}
	}
	top.write(w, "  ")
	digestOf := "Digest"
	if r.State != nil {
		r.State.checks(w)
		fmt.Fprintf(w, "  State digest: %s\n", r.State.Digest)
		digestOf = "Report digest"
	}
	for _, n := range r.Notes {
		row(w, "note", "%s", n)
	}
	fmt.Fprintf(w, "  %s: %s\n", digestOf, r.Digest)
}

// verifyDevice proves what a device ran by the report that it signed.
func (p *program) verifyDevice(c *cli.Context, reference string) error {
	for _, flag := range []string{"attestation", "annotation", "kind", "certificate-identity"} {
		if c.IsSet(flag) {
			return misused(c, "--%s is not for a device's report", flag)
		}
	}
	if len(c.StringSlice("key")) == 0 {
		return misused(c, "give the device's public key with --key: longshore-agent key prints it")
	}
	keys, err := publicKeys(c.StringSlice("key"))
	if err != nil {
		return err
	}
	judge, err := p.stateJudge(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	repo, tag, err := openTarget(c, client, reference)
	if err != nil {
		return err
	}
	if digest.Digest(tag).Validate() == nil {
		return misused(c, "%s: name the device by its tag: a digest does not say which device it should be", reference)
	}
	r, err := current.Read(c.Context, repo, strings.TrimSuffix(tag, artifacts.CurrentTag("")), keys)
	if err != nil {
		return verdict(err)
	}
	notes, err := p.fresh(c, r)
	if err != nil {
		return err
	}
	out := reportResult{
		Reference: reference, Digest: r.Digest.String(), Verified: true, Key: r.By.Fingerprint.String(), CurrentState: r.CurrentState,
		AgeSeconds: int64(p.now().Sub(r.Time) / time.Second), Notes: append([]string{}, notes...),
	}
	var failed error
	if judge != nil {
		if out.State, err = p.runningState(c, client, repo, r, judge); err != nil {
			return err
		}
		if out.State != nil {
			failed = verdict(out.State.Err())
		}
		out.Verified = failed == nil
	}
	if failed != nil && c.Bool("quiet") {
		return failed
	}
	if err := p.show(c, out); err != nil {
		return err
	}
	return failed
}

// stateJudge decides about the state that a device runs; nil: nobody asks.
func (p *program) stateJudge(c *cli.Context) (audit.Judge, error) {
	policy, err := p.policy(c)
	if err != nil {
		return nil, err
	}
	files := c.StringSlice("state-key")
	switch {
	case policy != nil && len(files) > 0:
		return nil, misused(c, "give --policy or --state-key, not both")
	case policy != nil:
		return audit.Policy{Policy: policy, Now: p.now()}, nil
	case len(files) == 0:
		return nil, nil
	}
	keys, err := publicKeys(files)
	if err != nil {
		return nil, err
	}
	return audit.Keys{Verifiers: signing.Verifiers(keys...)}, nil
}

// fresh holds a report against those that were seen before, and against the clock.
func (p *program) fresh(c *cli.Context, r *current.Report) (notes []string, err error) {
	age := p.now().Sub(r.Time)
	if most := c.Duration("max-age"); most > 0 && age > most {
		return nil, fault.WithHint(fmt.Errorf("report %d of %s is %s old, and --max-age is %s: %w", r.Counter, r.Device, age.Round(time.Second), most, fault.ErrRejected),
			"check that the device reaches the registry: longshore-agent status; if it does, find out who writes to the repository")
	}
	if age < 0 {
		notes = append(notes, fmt.Sprintf("the device's clock is %s ahead of this one", (-age).Round(time.Second)))
	}
	if c.IsSet("after") {
		more, err := current.After(r, c.Uint64("after"))
		if err != nil {
			return nil, err
		}
		notes = append(notes, more...)
	}
	file := c.String("seen")
	if file == "" {
		return notes, nil
	}
	unlock, err := lockFile(file)
	if err != nil {
		return nil, err
	}
	defer unlock()
	data, err := bounded.File(os.Open, file, maxSeen)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	memory, err := current.ParseMemory(file, data)
	if err != nil {
		return nil, err
	}
	more, err := memory.Take(r)
	if err != nil {
		return nil, err
	}
	if data, err = memory.Encode(); err != nil {
		return nil, err
	}
	return append(notes, more...), replace(file, data, 0o644)
}

// lockFile waits until no other process that calls it has the file. The lock is a file beside it, which stays: the file itself is replaced.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing ends the lock
}

// runningState verifies the signatures of the state that the device runs; nil: it runs none. That of a report in a layout is in the
// layout.
func (p *program) runningState(c *cli.Context, client *registry.Client, repo *registry.Repository, r *current.Report, judge audit.Judge) (*verifyResult, error) {
	if r.Running == nil {
		return nil, nil
	}
	states, err := statesNamed(client, repo, r.Repository)
	if err != nil {
		return nil, err
	}
	if policy, ok := judge.(audit.Policy); ok {
		if states.Reference().Scheme == registry.SchemeLayout {
			return nil, misused(c, "the report is on disk, and policies speak about repositories of registries: use --state-key")
		}
		policy.Elsewhere = elsewhere(client)
		judge = policy
	}
	report, err := audit.Chain(c.Context, states, r.Running.Digest.String(), audit.Options{
		Judge: p.placed(judge), Places: places{client}, Kind: artifacts.KindState, Alone: true, Now: p.now(),
	})
	if err != nil {
		return nil, fmt.Errorf("the state that %s runs: %w", r.Device, err)
	}
	_, manifest, err := states.Manifest(c.Context, r.Running.Digest)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("the state that %s runs: %w", r.Device, err)
	}
	if x.Device != r.Device || x.Generation != r.Running.Generation {
		err := fmt.Errorf("%s reports that it runs generation %d, and the state with that digest, %s, is generation %d of %s: %w",
			r.Device, r.Running.Generation, r.Running.Digest, x.Generation, x.Device, fault.ErrBadSignature)
		return nil, fault.WithHint(err, "the device's report contradicts itself: its agent or its key is in other hands; look at the device")
	}
	out := resultOf(r.Repository+"@"+r.Running.Digest.String(), report)
	return &out, nil
}

// statesNamed opens where the states of a report are.
func statesNamed(client *registry.Client, repo *registry.Repository, repository string) (*registry.Repository, error) {
	if repo.Reference().Scheme == registry.SchemeLayout || repo.Name() == repository {
		return repo, nil
	}
	ref, err := registry.ParseReference(repository)
	if err != nil {
		return nil, err
	}
	return client.OpenNamed(ref)
}
