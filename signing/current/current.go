// Package current reads and verifies the current states that devices push. It detects another
// signer, another device, an old report shown again, and missed reports.
//
// The entry point is [Read]. A [Memory] has the newest verified reports; a [Watch] uses one in a program that reads many.
package current

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Source is a repository or a layout.
type Source interface {
	Name() string
	Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
	Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error)
	Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)
}

// Report is a device's current state that its key has signed.
type Report struct {
	*artifacts.CurrentState
	By        signing.Key
	Digest    digest.Digest // of the artifact
	Statement digest.Digest // of what is signed: a device that pushes a report once more signs it again
	Manifest  []byte
	Bundle    []byte
}

// Read reads the report under the device tag ("press-07") of a repository: one that one of keys has signed and that is of this
// device. Errors wrap fault.ErrNotFound (it never reported there), fault.ErrBadSignature (signed by another key, altered, or of
// another device), or fault.ErrInvalid and its kind (it is not a report).
func Read(ctx context.Context, from Source, tag string, keys []signing.Key) (*Report, error) {
	r, err := read(ctx, from, tag, keys)
	if err != nil {
		return nil, fmt.Errorf("report %s:%s: %w", from.Name(), artifacts.CurrentTag(tag), err)
	}
	return r, nil
}

func read(ctx context.Context, from Source, tag string, keys []signing.Key) (*Report, error) {
	d, err := from.Resolve(ctx, artifacts.CurrentTag(tag))
	if err != nil {
		return nil, err
	}
	r := &Report{Digest: d.Digest}
	if _, r.Manifest, err = from.Manifest(ctx, d.Digest); err != nil {
		return nil, err
	}
	x, err := artifacts.OpenCurrentState(r.Manifest)
	if err != nil {
		return nil, err
	}
	if r.Bundle, err = x.Read(func(d ocispec.Descriptor) ([]byte, error) { return from.Blob(ctx, d, artifacts.MaxCurrentState) }); err != nil {
		return nil, err
	}
	statement, by, err := signing.ReadStatement(ctx, r.Bundle, keys)
	if err != nil {
		return nil, err
	}
	r.Statement = digest.FromBytes(statement)
	if r.CurrentState, err = artifacts.ParseCurrentState("report", statement); err != nil {
		return nil, err
	}
	if r.By = by; r.Device.Tag() != tag {
		return nil, fault.WithHint(fmt.Errorf("it is the report of device %s: %w", r.Device, fault.ErrBadSignature),
			"the report of another device was put there: find out who writes to the repository")
	}
	return r, nil
}

// Seen is the newest verified report of a device.
type Seen struct {
	Epoch     string        `json:"epoch"`
	Counter   uint64        `json:"counter"`
	Digest    digest.Digest `json:"digest"`              // of the artifact
	Statement digest.Digest `json:"statement,omitempty"` // that is signed
	Time      time.Time     `json:"time"`                // by the device's clock, and no later than when it was taken
	Earlier   []string      `json:"earlier,omitempty"`   // epochs before, the last at the end
}

const maxEarlier = 64 // epochs that are remembered of one device

// Memory has the newest verified report of each device, by id.
type Memory map[artifacts.DeviceID]Seen

// ParseMemory reads what [Memory.Encode] writes; empty input is an empty memory.
func ParseMemory(file string, data []byte) (Memory, error) {
	m := Memory{}
	if len(data) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(data, &m); err != nil || m == nil {
		return nil, fmt.Errorf("%s: this is not a file that --seen has written: %w", file, errors.Join(fault.ErrInvalid, err))
	}
	return m, nil
}

// Encode writes the memory.
func (m Memory) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(m, "", "  ")
	return append(data, '\n'), err
}

// Take compares a report with the newest one before, and stores it. An error wraps fault.ErrRollback: it is older than a
// verified one, by the device's clock if it is of another database, or fault.ErrConflict: another one with the same number was verified. notes are not errors: a gap, a new
// database. at is the time of this machine.
func (m Memory) Take(r *Report, at time.Time) (notes []string, err error) {
	now := Seen{Epoch: r.Epoch, Counter: r.Counter, Digest: r.Digest, Statement: r.Statement, Time: r.Time}
	if now.Time.After(at) { // its clock is wrong: a new database with the right one must not seem to be older for ever
		now.Time = at.UTC()
	}
	before, known := m[r.Device]
	switch {
	case !known:
	case slices.Contains(before.Earlier, r.Epoch):
		return nil, fault.WithHint(fmt.Errorf("report %d of %s is of a database that the device has replaced since: %w", r.Counter, r.Device, fault.ErrRollback), hintReplay)
	case r.Epoch != before.Epoch && !r.Time.After(before.Time):
		return nil, fault.WithHint(fmt.Errorf("report %d of %s is of another database and signed at %s, and one signed at %s was seen before: %w",
			r.Counter, r.Device, r.Time.Format(time.RFC3339), before.Time.Format(time.RFC3339), fault.ErrRollback), hintReplay+"; if the device has a new database, set its clock")
	case r.Epoch != before.Epoch:
		now.Earlier = append(slices.Clone(before.Earlier), before.Epoch)
		now.Earlier = now.Earlier[max(0, len(now.Earlier)-maxEarlier):]
		notes = append(notes, fmt.Sprintf("the device has a new database: its counter began again after %d, and an older report cannot be told by it", before.Counter))
	case r.Counter < before.Counter:
		return nil, fault.WithHint(fmt.Errorf("report %d of %s, and report %d was seen before: %w", r.Counter, r.Device, before.Counter, fault.ErrRollback), hintReplay)
	case r.Counter == before.Counter && r.Digest != before.Digest && r.Statement != before.Statement:
		return nil, fault.WithHint(fmt.Errorf("report %d of %s was seen with other content, %s: %w", r.Counter, r.Device, before.Digest, fault.ErrConflict),
			"find out who has the device's key: a copy of its disk runs on a second device, or the key was stolen")
	default:
		if now.Earlier = before.Earlier; r.Counter == before.Counter && before.Time.Before(now.Time) {
			now.Time = before.Time
		}
		notes = append(notes, gap(before.Counter, r.Counter)...)
	}
	m[r.Device] = now
	return notes, nil
}

// Watch compares reports with those that earlier runs have read. It is safe for concurrent use.
type Watch struct {
	mu     sync.Mutex
	memory Memory
	missed map[artifacts.DeviceID]uint64
}

// NewWatch continues with the memory that an earlier run has encoded. Data that cannot be read is no memory.
func NewWatch(data []byte) *Watch {
	m, err := ParseMemory("", data)
	if err != nil {
		m = Memory{}
	}
	return &Watch{memory: m, missed: map[artifacts.DeviceID]uint64{}}
}

// Take is [Memory.Take]. note is not an error: the device has a new database. Missed reports are counted.
func (w *Watch) Take(r *Report, at time.Time) (note string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.memory[r.Device]
	notes, err := w.memory.Take(r, at)
	if err != nil || !known {
		return "", err
	}
	if before.Epoch == r.Epoch {
		w.missed[r.Device] += max(r.Counter, before.Counter+1) - before.Counter - 1
		return "", nil
	}
	return strings.Join(notes, "; "), nil
}

// Missed is how many reports of a device were replaced by newer ones before they were read.
func (w *Watch) Missed(id artifacts.DeviceID) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missed[id]
}

// AllMissed is the sum for all devices.
func (w *Watch) AllMissed() (sum uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.missed {
		sum += n
	}
	return sum
}

// Encode is [Memory.Encode].
func (w *Watch) Encode() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.memory.Encode()
}

const hintReplay = "an old report is shown: find out who writes to the repository, or which mirror is not up to date"

// gap reports that reports between two were missed.
func gap(before, now uint64) []string {
	if now <= before+1 {
		return nil
	}
	return []string{fmt.Sprintf("%d reports between %d and %d were not seen: newer ones took their place", now-before-1, before, now)}
}

// After is [Memory.Take] where only the number of a report is known.
func After(r *Report, counter uint64) (notes []string, err error) {
	if r.Counter < counter {
		return nil, fault.WithHint(fmt.Errorf("report %d of %s, and report %d was seen before: %w", r.Counter, r.Device, counter, fault.ErrRollback), hintReplay)
	}
	return gap(counter, r.Counter), nil
}
