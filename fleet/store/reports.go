package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// keptEpochs bounds the stored epochs of one device.
const keptEpochs = 16

// clockSlack is how far the endpoint's clock may be set back before times from before that are known to be wrong.
const clockSlack = time.Minute

// PutCapabilities implements [Reports].
func (s *SQLite) PutCapabilities(ctx context.Context, r Capabilities) (Outcome, error) {
	out, err := answer(ctx, s.writer, func(ctx context.Context, w *writer) (Outcome, error) { return w.putCapabilities(ctx, r) })
	return out, s.refused(ctx, err, r.Device, r.By, heardAt(r.At, r.Now))
}

func (w *writer) putCapabilities(ctx context.Context, r Capabilities) (Outcome, error) {
	if parent, ok := parentOf(r.Device); ok {
		known, err := w.registered(ctx, parent)
		if err != nil {
			return 0, broken("find gateway", err)
		}
		if !known {
			return 0, fmt.Errorf("register %s: gateway %s: %w", r.Device, parent, fault.ErrNotFound)
		}
	}
	var has, restored bool
	var epoch, sequence, heard, size int64
	known, err := w.row(ctx, `SELECT capabilities IS NOT NULL, restored, epoch, sequence, last_heard, (coalesce(length(summary), 0) + coalesce(length(capabilities), 0) + 1024) / 1024
		FROM devices WHERE id = ?`, []any{r.Device}, &has, &restored, &epoch, &sequence, &heard, &size)
	if err != nil {
		return 0, broken("find device", err)
	}
	now := heardAt(r.At, r.Now)
	if has && !restored && r.Stamp.Epoch != "" && now.at < heard && !now.before(heard) {
		if _, known, err := w.epoch(ctx, r.Device, r.Stamp.Epoch); err != nil || !known {
			return Older, err // of a database before the first report here: it must not be numbered as the newest one
		}
	}
	ordinal, err := w.ordinal(ctx, r.Device, r.Stamp.Epoch)
	if err != nil {
		return 0, err
	}
	if has && !restored && !r.Stamp.after(ordinal, epoch, sequence) {
		return Repeated, w.heard(ctx, r.Device, r.By, now)
	}
	children := 0
	if _, child := parentOf(r.Device); child && !known {
		children = 1
	}
	if err := w.charge(ctx, r.Device, "", children, kib(r.Summary, r.Body)-size); err != nil {
		return 0, err
	}
	err = w.exec(ctx, `INSERT INTO devices (id, alarm, interval, epoch, sequence, first_heard, last_heard, summary, capabilities, registered_by)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET alarm = excluded.alarm, interval = excluded.interval, epoch = excluded.epoch, sequence = excluded.sequence,
		summary = excluded.summary, capabilities = excluded.capabilities, registered_by = excluded.registered_by, restored = 0`,
		r.Device, r.Alarm, r.Interval.Milliseconds(), ordinal, int64(r.Stamp.Sequence), now.at, now.at, r.Summary, r.Body, r.By)
	if err != nil {
		return 0, broken("write device", err)
	}
	if err := w.heard(ctx, r.Device, r.By, now); err != nil {
		return 0, err
	}
	if known && has && !restored {
		return Updated, nil
	}
	return Created, nil
}

// PutStatus implements [Reports].
func (s *SQLite) PutStatus(ctx context.Context, r Status) (Outcome, error) {
	out, err := answer(ctx, s.writer, func(ctx context.Context, w *writer) (Outcome, error) { return w.putStatus(ctx, r) })
	return out, s.refused(ctx, err, r.Device, r.By, heardAt(r.At, r.Now))
}

func (w *writer) putStatus(ctx context.Context, r Status) (Outcome, error) {
	if r.Registered {
		known, err := w.registered(ctx, r.Device)
		if err != nil {
			return 0, broken("find device", err)
		}
		if !known {
			return 0, fmt.Errorf("report on %s: %w", r.Device, fault.ErrNotFound)
		}
	}
	now := heardAt(r.At, r.Now)
	var known bool
	var ordinal, epoch, sequence, size int64
	noted, err := w.row(ctx, `SELECT coalesce(e.ordinal, 0), p.id IS NOT NULL, coalesce(p.epoch, 0), coalesce(p.sequence, 0), coalesce((length(p.body) + 1024) / 1024, 0)
		FROM devices d LEFT JOIN epochs e ON e.device = d.id AND e.epoch = ? LEFT JOIN deployments p ON p.device = d.id AND p.id = ? WHERE d.id = ?`,
		[]any{r.Stamp.Epoch, r.Deployment, r.Device}, &ordinal, &known, &epoch, &sequence, &size)
	if err != nil {
		return 0, broken("find deployment", err)
	}
	if !noted {
		if err := w.exec(ctx, "INSERT INTO devices (id, interval, first_heard, last_heard) VALUES (?, ?, ?, ?)", r.Device, r.Interval.Milliseconds(), now.at, now.at); err != nil {
			return 0, broken("write device", err)
		}
		children := 0
		if _, child := parentOf(r.Device); child {
			children = 1
		}
		if err := w.charge(ctx, r.Device, "", children, kib()); err != nil {
			return 0, err
		}
	}
	if err := w.heard(ctx, r.Device, r.By, now); err != nil {
		return 0, err
	}
	if ordinal == 0 {
		if ordinal, err = w.ordinal(ctx, r.Device, r.Stamp.Epoch); err != nil {
			return 0, err
		}
	}
	if known && !r.Stamp.after(ordinal, epoch, sequence) {
		return Repeated, nil
	}
	if !known {
		if err := w.roomFor(ctx, r.Device); err != nil {
			return 0, err
		}
		if err := w.exec(ctx, "UPDATE devices SET deployments = deployments + 1 WHERE id = ?", r.Device); err != nil {
			return 0, broken("count deployments", err)
		}
	}
	if err := w.charge(ctx, r.Device, r.Deployment, 0, kib(r.Body)-size); err != nil {
		return 0, err
	}
	err = w.exec(ctx, `INSERT INTO deployments (device, id, state, epoch, sequence, since, reported, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (device, id) DO UPDATE SET since = iif(state = excluded.state AND since <= ?, since, excluded.since), state = excluded.state,
		body = excluded.body, epoch = excluded.epoch, sequence = excluded.sequence, reported = excluded.reported`,
		r.Device, r.Deployment, string(r.State), ordinal, int64(r.Stamp.Sequence), now.at, now.at, r.Body, now.latest)
	if err != nil {
		return 0, broken("write deployment", err)
	}
	if known {
		return Updated, nil
	}
	return Created, nil
}

// after reports whether a report is newer than the stored one. ordinal is that of the report's epoch.
func (s Stamp) after(ordinal, heldOrdinal, heldSequence int64) bool {
	switch {
	case ordinal == 0: // without order
		return true
	case ordinal != heldOrdinal:
		return ordinal > heldOrdinal
	}
	return s.Sequence > uint64(heldSequence)
}

// ordinal numbers a device's epochs from 1 as they are first seen; 0 is no epoch.
func (w *writer) ordinal(ctx context.Context, device, epoch string) (int64, error) {
	if epoch == "" {
		return 0, nil
	}
	n, known, err := w.epoch(ctx, device, epoch)
	if err != nil || known {
		return n, err
	}
	if _, err := w.row(ctx, "SELECT coalesce(max(ordinal), 0) + 1 FROM epochs WHERE device = ?", []any{device}, &n); err != nil {
		return 0, broken("number epoch", err)
	}
	if err := w.exec(ctx, "INSERT INTO epochs (device, epoch, ordinal) VALUES (?, ?, ?)", device, epoch, n); err != nil {
		return 0, broken("write epoch", err)
	}
	if err := w.exec(ctx, "DELETE FROM epochs WHERE device = ? AND ordinal <= ?", device, n-keptEpochs); err != nil {
		return 0, broken("forget epochs", err)
	}
	return n, nil
}

// epoch finds the number of an epoch.
func (w *writer) epoch(ctx context.Context, device, epoch string) (n int64, known bool, err error) {
	known, err = w.row(ctx, "SELECT ordinal FROM epochs WHERE device = ? AND epoch = ?", []any{device, epoch}, &n)
	return n, known, broken("find epoch", err)
}

// refused updates the last-heard time of a device whose report exceeds a quota: the device is not offline. The
// report's own job is rolled back, with what it noted.
func (s *SQLite) refused(ctx context.Context, err error, device, by string, now moment) error {
	var full *QuotaError
	if !errors.As(err, &full) {
		return err
	}
	if broke := s.write(ctx, func(ctx context.Context, w *writer) error { return w.heard(ctx, device, by, now) }); broke != nil {
		return broke
	}
	return err
}

// moment is when a report was made, and what the endpoint's clock says at most since then.
type moment struct{ at, latest int64 }

func heardAt(at, now time.Time) moment {
	if now.IsZero() {
		now = at
	}
	return moment{millis(at), millis(now.Add(clockSlack))}
}

// before reports whether a time is yet to come: it is of a clock that was ahead, and says nothing.
func (m moment) before(t int64) bool { return t > m.latest }

// heard notes that a device, and the gateway that spoke for it, are there.
func (w *writer) heard(ctx context.Context, device, by string, now moment) error {
	for _, id := range slices.Compact([]string{device, by}) { // "id IN (?, ?)" takes twice as long, and mostly the two are one
		if err := w.exec(ctx, `UPDATE devices SET first_heard = iif(first_heard > ?1, ?2, first_heard),
			last_heard = iif(last_heard > ?1, ?2, max(last_heard, ?2)) WHERE id = ?3`, now.latest, now.at, id); err != nil {
			return broken("write device", err)
		}
	}
	return nil
}

func (w *writer) registered(ctx context.Context, id string) (bool, error) {
	var one int
	return w.row(ctx, "SELECT 1 FROM devices WHERE id = ? AND capabilities IS NOT NULL", []any{id}, &one)
}

// DeleteDevice implements [Reports].
func (s *SQLite) DeleteDevice(ctx context.Context, id string) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		known, err := w.registered(ctx, id)
		if err != nil {
			return broken("find device", err)
		}
		if !known {
			return fmt.Errorf("remove device %s: %w", id, fault.ErrNotFound)
		}
		_, err = w.deleteDevice(ctx, id)
		return err
	})
}

// deleteDevice forgets the reports of a device and of those behind it; known reports whether there were any. The epochs of a device without
// a gateway stay, so that an old report does not bring it back as new. Those of devices behind a gateway go: it could have any number of them
// remembered.
func (w *writer) deleteDevice(ctx context.Context, id string) (known bool, err error) {
	from, to := id+"/", id+"0" // "0" follows "/": everything that begins with id/
	if err := w.exec(ctx, "DELETE FROM deployments WHERE device = ? OR device > ? AND device < ?", id, from, to); err != nil {
		return false, broken("remove deployments", err)
	}
	if _, child := parentOf(id); child {
		if err := w.exec(ctx, "DELETE FROM epochs WHERE device = ?", id); err != nil {
			return false, broken("forget epochs", err)
		}
	}
	if err := w.exec(ctx, "DELETE FROM epochs WHERE device > ? AND device < ?", from, to); err != nil {
		return false, broken("forget epochs", err)
	}
	n, err := w.change(ctx, "DELETE FROM devices WHERE id = ? OR id > ? AND id < ?", id, from, to)
	if err != nil {
		return false, broken("remove device", err)
	}
	return n > 0, w.recount(ctx, id)
}

func parentOf(id string) (string, bool) {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return "", false
	}
	return id[:i], true
}
