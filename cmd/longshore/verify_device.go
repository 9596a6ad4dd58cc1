package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/current"
)

// maxSeen limits the file of --seen: 100,000 devices need 20 MB.
const maxSeen = 32 << 20

const reportCategory = "Device reports"

var deviceReportFlags = []cmdline.Flag{
	{Name: "state-key", Value: []string(nil), Category: reportCategory, Usage: "public key `FILE`; the state that the device runs must be signed with it; may be repeated, one signature is enough"},
	{Name: "seen", Category: reportCategory, Usage: "`FILE` with the newest report of each device, which the command creates and updates; older reports are rejected"},
	{Name: "after", Value: uint64(0), Category: reportCategory, Usage: "reject a report with a lower number than `NUMBER`", Default: "none"},
	{Name: "max-age", Value: time.Duration(0), Category: reportCategory, Usage: "reject a report that is older than this `TIME`, by the device's clock; 0 means any age"},
}

// reportResult is a verified report of a device.
type reportResult struct {
	Reference  string `json:"reference"`
	Digest     string `json:"digest"` // of the report
	Verified   bool   `json:"verified"`
	Key        string `json:"key"` // fingerprint of the device's key
	AgeSeconds int64  `json:"ageSeconds"`

	NextDue time.Time `json:"nextDue,omitzero"` // when the next report is due, by the device's clock; left out: it does not say
	Overdue bool      `json:"overdue"`
	*artifacts.CurrentState
	State *verifyResult `json:"state,omitempty"` // the state that runs; left out: not requested
	Notes []string      `json:"notes"`
}

func (r reportResult) quietText() string { return r.Digest }

func (r reportResult) text(w io.Writer) {
	fmt.Fprintf(w, "report %d of %s\n", r.Counter, r.Device)
	row(w, "signed", "by the device's key (%s), %s by the device's clock, %s ago", printable.Digest(r.Key), stamp(r.Time), time.Duration(r.AgeSeconds)*time.Second)
	switch {
	case r.NextDue.IsZero():
	case r.Overdue:
		row(w, "overdue", "the next report was due by %s", stamp(r.NextDue))
	default:
		row(w, "next", "due by %s", stamp(r.NextDue))
	}
	for _, g := range []struct {
		label string
		*artifacts.CurrentGeneration
	}{{"runs", r.Running}, {"accepted", r.Accepted}, {"committed", r.Committed}} {
		if g.CurrentGeneration != nil && (g.CurrentGeneration == r.Running || r.Running == nil || *g.CurrentGeneration != *r.Running) {
			row(w, g.label, "generation %d (%s)", g.Generation, printable.Digest(g.Digest))
		}
	}
	if r.Running == nil {
		row(w, "runs", "nothing")
	}
	if x := r.Refused; x != nil {
		row(w, "refused", "%s (%s) since %s: %s", printable.Digest(x.Digest), x.Code, stamp(x.Since), oneLine(x.Message))
	}
	var top branch
	for _, d := range r.Deployments {
		at := top.add("%s  %s since %s", oneLine(d.Name), d.State, stamp(d.Since))
		if d.Error != nil {
			at.add("%s: %s", d.Error.Code, oneLine(d.Error.Message))
		}
		for _, c := range d.Components {
			below := at.add("%s %s  %s  %s", oneLine(c.Name), oneLine(c.Revision), printable.Digest(c.Digest), c.State)
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
	rows(w, "note", r.Notes)
	fmt.Fprintf(w, "  %s: %s\n", digestOf, r.Digest)
}

// verifyDevice verifies the report that a device signed.
func (c *call) verifyDevice(reference string) error {
	for _, flag := range []string{"attestation", "annotation", "kind", "certificate-identity"} {
		if c.IsSet(flag) {
			return c.misused("--%s cannot be used for a device's report", flag)
		}
	}
	if len(c.StringSlice("key")) == 0 {
		return c.misused("use --key with the device's public key: longshore-agent key prints it")
	}
	keys, err := publicKeys(c.StringSlice("key"))
	if err != nil {
		return err
	}
	judge, err := c.stateJudge()
	if err != nil {
		return err
	}
	repo, tag, err := c.openTarget(reference)
	if err != nil {
		return err
	}
	if digest.Digest(tag).Validate() == nil {
		return c.misused("%s: name the device by its tag: a digest does not name the expected device", reference)
	}
	r, err := current.Read(c.Context, repo, strings.TrimSuffix(tag, artifacts.CurrentTag("")), keys)
	if err != nil {
		return verdict(err)
	}
	notes, err := c.fresh(r)
	if err != nil {
		return err
	}
	out := reportResult{
		Reference: reference, Digest: r.Digest.String(), Verified: true, Key: r.By.Fingerprint.String(), CurrentState: r.CurrentState,
		AgeSeconds: int64(c.now().Sub(r.Time) / time.Second), Notes: append([]string{}, notes...), NextDue: r.Due(),
	}
	out.Overdue = !out.NextDue.IsZero() && c.now().After(out.NextDue)
	var failed error
	if judge != nil {
		if out.State, err = c.runningState(repo, r, judge); err != nil {
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
	return cmp.Or(c.show(out), failed)
}

// stateJudge verifies the state that a device runs; nil: not requested.
func (c *call) stateJudge() (audit.Judge, error) {
	files := c.StringSlice("state-key")
	switch {
	case c.policy != nil && len(files) > 0:
		return nil, c.misused("--policy excludes --state-key")
	case c.policy != nil:
		return audit.Policy{Policy: c.policy, Now: c.now()}, nil
	case len(files) == 0:
		return nil, nil
	}
	keys, err := publicKeys(files)
	if err != nil {
		return nil, err
	}
	return audit.Keys{Verifiers: signing.Verifiers(keys...)}, nil
}

// fresh rejects old reports: by the clock, and by the reports that were verified before.
func (c *call) fresh(r *current.Report) (notes []string, err error) {
	age := c.now().Sub(r.Time)
	if most := c.Duration("max-age"); most > 0 && age > most {
		return nil, fault.WithHint(fmt.Errorf("report %d of %s is %s old, and --max-age is %s: %w", r.Counter, r.Device, age.Round(time.Second), most, fault.ErrRejected),
			"check that the device reaches the registry: longshore-agent status; if it does, find out who else writes to the repository")
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
	more, err := memory.Take(r, c.now())
	if err != nil {
		return nil, err
	}
	if data, err = memory.Encode(); err != nil {
		return nil, err
	}
	return append(notes, more...), files.Write(file, data, 0o644)
}

// lockFile waits until no other process has locked the file. The lock is another file beside it, because the file itself is
// replaced.
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

// runningState verifies the signatures of the state that the device runs; nil if it runs none. If the report is in a layout, the
// state must be there too.
func (c *call) runningState(repo *registry.Repository, r *current.Report, judge audit.Judge) (*verifyResult, error) {
	if r.Running == nil {
		return nil, nil
	}
	states := repo
	if repo.Reference().Scheme != registry.SchemeLayout && repo.Name() != r.Repository {
		var err error
		if states, err = c.registry.OpenName(c.Context, r.Repository); err != nil {
			return nil, err
		}
	}
	if _, isPolicy := judge.(audit.Policy); isPolicy && states.Reference().Scheme == registry.SchemeLayout {
		return nil, c.misused("the report is on disk, and policies have rules for registries only: use --state-key")
	}
	report, err := c.chain(c.Context, states, r.Running.Digest.String(), judge, audit.Options{Places: c.places(), Kind: artifacts.KindState, Alone: true})
	if err != nil {
		return nil, fmt.Errorf("the state that %s runs: %w", r.Device, err)
	}
	s, err := release.Open(c.Context, states, r.Running.Digest.String())
	if err != nil {
		return nil, fmt.Errorf("the state that %s runs: %w", r.Device, err)
	}
	x := s.Index
	if x.Device != r.Device || x.Generation != r.Running.Generation {
		err := fmt.Errorf("%s reports that it runs generation %d, but the state with the reported digest, %s, is generation %d of %s: %w",
			r.Device, r.Running.Generation, r.Running.Digest, x.Generation, x.Device, fault.ErrBadSignature)
		return nil, fault.WithHint(err, "the report contradicts itself: the device's agent or key may be compromised; check the device")
	}
	out := resultOf(r.Repository+"@"+r.Running.Digest.String(), report)
	return &out, nil
}
