package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

// ReportsDir is the folder of a medium that has the reports of a site's devices, an OCI layout.
const ReportsDir = "reports"

// ReportsPath is the path of the reports on a medium.
func ReportsPath(medium string) string { return filepath.Join(medium, ReportsDir) }

// PrepareReports prepares a medium for reports: documents of the layout that are cut off are written anew, and damaged reports if check is not nil.
func PrepareReports(ctx context.Context, medium string, check Checking) error {
	return prepare(ctx, ReportsPath(medium), check)
}

// Results for a report.
const (
	ReportCarried = "carried"
	ReportThere   = "there"   // the destination has the same report
	ReportOlder   = "older"   // the destination has a newer one, which stays
	ReportInvalid = "invalid" // it cannot be read; it is left out
	ReportLater   = "later"   // the fleet endpoint does not store it now: it is to be handed in again
)

// CarriedReport is the report of one device.
type CarriedReport struct {
	Tag     string             `json:"tag"`
	Device  artifacts.DeviceID `json:"device,omitempty"`
	Counter uint64             `json:"counter,omitempty"`
	Outcome string             `json:"outcome"`
	Reason  string             `json:"reason,omitempty"` // why it was not taken
	Note    string             `json:"note,omitempty"`   // what the fleet endpoint says of it
}

// CarryReports copies the reports of devices from one place to another, byte for byte. An older report never replaces a
// newer one, and an existing one is not copied again. An artifact that is not a report of the device is replaced. It may be repeated
// after any interruption. good reports by a report's tag and bundle whether its device signed it; if it is nil, anyone with push rights
// at from can store a false report, which stays until it is verified.
func CarryReports(ctx context.Context, from, to *registry.Repository, good func(tag string, bundle []byte) error) ([]CarriedReport, error) {
	return eachReport(ctx, from, reportsAtOnce, func(ctx context.Context, tag string) (CarriedReport, error) {
		return carryReport(ctx, from, to, tag, good)
	})
}

// reportsAtOnce is how many reports are carried at a time: each waits before it is known that no other writer replaced its tag.
const reportsAtOnce = 16

// eachReport carries the reports of a repository, most at a time, in the order of their tags. Those that were carried are returned with an
// error, too.
func eachReport(ctx context.Context, from *registry.Repository, most int, carry func(ctx context.Context, tag string) (CarriedReport, error)) ([]CarriedReport, error) {
	tags, err := from.Tags(ctx)
	if err != nil {
		return nil, err
	}
	tags = slices.DeleteFunc(tags, func(tag string) bool { return !strings.HasSuffix(tag, artifacts.CurrentTag("")) })
	slices.Sort(tags)
	out := make([]CarriedReport, len(tags))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(most)
	for i, tag := range tags {
		g.Go(func() error {
			if inner.Err() != nil {
				return inner.Err()
			}
			r, err := carry(inner, tag)
			if err == nil {
				out[i] = r
			}
			return err
		})
	}
	err = g.Wait()
	return slices.DeleteFunc(out, func(r CarriedReport) bool { return r.Tag == "" }), err
}

// HandReports hands the reports of devices in to a function that takes each once: stored is false for one that is not newer than what is
// there. A report is left out if hand returns fault.ErrDenied or fault.ErrInvalid; after fault.ErrNotFound, which means that the device's gateway
// is unknown, it is handed in once more when the others are there. An error that says when to try again is about this report, such as the
// device's quota: the others are handed in, and it is returned at the end. Another error ends it. What was handed in is returned with an error, too.
func HandReports(ctx context.Context, from *registry.Repository, good func(tag string, bundle []byte) error, hand func(ctx context.Context, bundle []byte) (stored bool, note string, err error)) ([]CarriedReport, error) {
	early := map[string]bool{}
	var later error
	one := func(ctx context.Context, tag string) (CarriedReport, error) {
		out, r, err := goodReport(ctx, from, tag, good)
		if err != nil || out.Reason != "" {
			return out, err
		}
		stored, note, err := hand(ctx, r.bundle)
		out.Note = note
		early[tag] = errors.Is(err, fault.ErrNotFound)
		_, again := fault.RetryAfter(err)
		switch {
		case again:
			out.Outcome, out.Reason, later = ReportLater, err.Error(), err
		case early[tag], errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrInvalid):
			out.Reason = err.Error()
		case err != nil:
			return out, err
		case stored:
			out.Outcome = ReportCarried
		default:
			out.Outcome = ReportThere
		}
		return out, nil
	}
	all, err := eachReport(ctx, from, 1, one)
	for i, r := range all {
		if early[r.Tag] && err == nil {
			all[i], err = one(ctx, r.Tag)
		}
	}
	return all, cmp.Or(err, later)
}

func carryReport(ctx context.Context, from, to *registry.Repository, tag string, good func(string, []byte) error) (CarriedReport, error) {
	out, r, err := goodReport(ctx, from, tag, good)
	if err != nil || out.Reason != "" {
		return out, err
	}
	was, there, other, err := peek(ctx, to, tag)
	if err == nil && good != nil && was != r.digest {
		err = good(tag, other)
	}
	switch {
	case release.Unfit(err): // there is no report, or none that could be the device's newest one
	case err != nil:
		return out, fmt.Errorf("%s:%s at the destination: %w", to.Name(), tag, err)
	case was == r.digest:
		out.Outcome = ReportThere
		return out, nil
	case there.Device == r.Device && !r.Newer(there):
		out.Outcome = ReportOlder
		return out, nil
	}
	if _, err := to.CopyFrom(ctx, from, r.digest, ""); err != nil {
		return out, err
	}
	if err := to.CompareAndMoveTag(ctx, tag, was, r.digest); err != nil {
		return out, err
	}
	out.Outcome = ReportCarried
	return out, nil
}

// carriedReport is a report as it was read.
type carriedReport struct {
	*artifacts.CurrentState
	digest digest.Digest // of the artifact
	bundle []byte
}

// goodReport reads a report that is of its device; one that is not has a Reason.
func goodReport(ctx context.Context, from *registry.Repository, tag string, good func(string, []byte) error) (CarriedReport, *carriedReport, error) {
	out := CarriedReport{Tag: tag, Outcome: ReportInvalid}
	d, c, bundle, err := peek(ctx, from, tag)
	if fault.Retryable(err) || ctx.Err() != nil {
		return out, nil, cmp.Or(err, ctx.Err())
	}
	if err == nil && artifacts.CurrentTag(c.Device.Tag()) != tag {
		err = fmt.Errorf("it is the report of device %s: %w", c.Device, fault.ErrInvalid)
	}
	if err == nil && good != nil {
		err = good(tag, bundle)
	}
	if err != nil {
		out.Reason = err.Error()
		return out, nil, nil
	}
	out.Device, out.Counter = c.Device, c.Counter
	return out, &carriedReport{c, d, bundle}, nil
}

// peek reads a report without verifying it. The digest is also valid with an error, if the tag exists.
func peek(ctx context.Context, at *registry.Repository, tag string) (digest.Digest, *artifacts.CurrentState, []byte, error) {
	d, err := at.Resolve(ctx, tag)
	if err != nil {
		return "", nil, nil, err
	}
	_, manifest, err := at.Manifest(ctx, d.Digest)
	if err != nil {
		return d.Digest, nil, nil, err
	}
	c, bundle, err := readReport(ctx, at, manifest)
	return d.Digest, c, bundle, err
}

// readReport reads what the manifest of a report names, without verifying it.
func readReport(ctx context.Context, at *registry.Repository, manifest []byte) (*artifacts.CurrentState, []byte, error) {
	x, err := artifacts.OpenCurrentState(manifest)
	if err != nil {
		return nil, nil, err
	}
	bundle, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) { return at.Blob(ctx, d, artifacts.MaxCurrentState) })
	if err != nil {
		return nil, nil, err
	}
	c, err := artifacts.PeekCurrentState(bundle)
	return c, bundle, err
}
