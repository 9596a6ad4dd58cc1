package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	deviceColumns = "id, alarm, interval, first_heard, last_heard, summary, capabilities IS NOT NULL"
	// offline has four arguments: the latest time that is not of a clock that was ahead, since, after and now, see [Silence].
	offline = "max(iif(last_heard > ?, 0, last_heard), ?) + CASE WHEN interval > 0 THEN 3 * interval ELSE ? END < ?"
)

func (s Silence) args() []any {
	after := cmp.Or(s.After.Milliseconds(), 1<<60)
	return []any{millis(s.Now.Add(clockSlack)), millis(s.Since), after, millis(s.Now)}
}

// Device implements [View].
func (s *SQLite) Device(ctx context.Context, id string) (Device, error) {
	if err := s.files.intact(); err != nil {
		return Device{}, err
	}
	d, err := scanDevice(s.read.QueryRowContext(ctx, "SELECT "+deviceColumns+", capabilities, coalesce((SELECT e.epoch FROM epochs e WHERE e.device = devices.id AND e.ordinal = devices.epoch), ''), sequence FROM devices WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return Device{}, fmt.Errorf("device %s: %w", id, fault.ErrNotFound)
	}
	return d, broken("read device", err)
}

// Devices implements [View].
func (s *SQLite) Devices(ctx context.Context, q DeviceQuery) (list []Device, more bool, err error) {
	query, args := "SELECT "+deviceColumns+", NULL, '', 0 FROM devices WHERE id > ?", []any{q.After}
	if q.Capabilities {
		query = "SELECT " + deviceColumns + ", capabilities, '', 0 FROM devices WHERE id > ?"
	}
	if q.Alarm {
		query += " AND alarm = 1"
	}
	if q.Offline != nil {
		query, args = query+" AND "+offline, append(args, q.Offline.args()...)
	}
	size := func(d Device) int { return len(d.ID) + len(d.Summary) + len(d.Capabilities) }
	return collect(ctx, s, scanDevice, bound[Device]{q.Limit, q.Bytes, size}, query+" ORDER BY id LIMIT ?", append(args, q.Limit+1)...)
}

// Deployments implements [View].
func (s *SQLite) Deployments(ctx context.Context, q DeploymentQuery) (list []Deployment, more bool, err error) {
	stamp := "'', 0"
	if q.Device != "" {
		stamp = "coalesce((SELECT e.epoch FROM epochs e WHERE e.device = deployments.device AND e.ordinal = deployments.epoch), ''), sequence"
	}
	query, args := "SELECT device, id, state, since, reported, body, "+stamp+" FROM deployments WHERE (device, id) > (?, ?)", []any{q.After[0], q.After[1]}
	where := func(condition string, value string) {
		if value != "" {
			query, args = query+" AND "+condition, append(args, value)
		}
	}
	where("device = ?", q.Device)
	where("state = ?", string(q.State))
	order := "device, id"
	if q.Worst {
		order = "state IN ('installed', 'removed'), id"
	}
	size := func(d Deployment) int { return len(d.Device) + len(d.ID) + len(d.Body) }
	return collect(ctx, s, scanDeployment, bound[Deployment]{q.Limit, q.Bytes, size}, query+" ORDER BY "+order+" LIMIT ?", append(args, q.Limit+1)...)
}

type count struct {
	device string
	state  margo.State
	n      int
}

func scanCount(r scanner) (count, error) {
	var c count
	err := r.Scan(&c.device, &c.state, &c.n)
	return c, err
}

// Counts implements [View].
func (s *SQLite) Counts(ctx context.Context, devices []string) (map[string]map[margo.State]int, error) {
	ids, err := json.Marshal(devices)
	if err != nil {
		return nil, fmt.Errorf("count deployments: %w", err)
	}
	counts, _, err := collect(ctx, s, scanCount, bound[count]{},
		"SELECT device, state, count(*) FROM deployments WHERE device IN (SELECT value FROM json_each(?)) GROUP BY device, state", string(ids))
	out := map[string]map[margo.State]int{}
	for _, c := range counts {
		if out[c.device] == nil {
			out[c.device] = map[margo.State]int{}
		}
		out[c.device][c.state] = c.n
	}
	return out, err
}

// Summary implements [View].
func (s *SQLite) Summary(ctx context.Context, silence Silence) (Summary, error) {
	if err := s.files.intact(); err != nil {
		return Summary{}, err
	}
	out := Summary{Deployments: map[margo.State]int{}}
	row := s.read.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(alarm), 0), coalesce(sum("+offline+"), 0) FROM devices INDEXED BY devices_heard", silence.args()...)
	if err := row.Scan(&out.Devices, &out.Alarms, &out.Offline); err != nil {
		return Summary{}, broken("count devices", err)
	}
	counts, _, err := collect(ctx, s, scanCount, bound[count]{}, "SELECT '', state, count(*) FROM deployments GROUP BY state")
	for _, c := range counts {
		out.Deployments[c.state] = c.n
	}
	return out, err
}

type scanner interface{ Scan(into ...any) error }

func scanDevice(r scanner) (Device, error) {
	var d Device
	var interval, first, last, sequence int64
	err := r.Scan(&d.ID, &d.Alarm, &interval, &first, &last, &d.Summary, &d.Registered, &d.Capabilities, &d.Stamp.Epoch, &sequence)
	d.Stamp.Sequence = uint64(sequence)
	d.Interval, d.FirstHeard, d.LastHeard = time.Duration(interval)*time.Millisecond, at(first), at(last)
	return d, err
}

func scanDeployment(r scanner) (Deployment, error) {
	var d Deployment
	var since, reported, sequence int64
	err := r.Scan(&d.Device, &d.ID, &d.State, &since, &reported, &d.Body, &d.Stamp.Epoch, &sequence)
	d.Stamp.Sequence = uint64(sequence)
	d.Since, d.Reported = at(since), at(reported)
	return d, err
}

// bound ends a list. The zero value does not.
type bound[T any] struct {
	rows, bytes int         // 0: no limit
	size        func(T) int // of one row
}

// collect reads rows; more reports whether the bound has left some out.
func collect[T any](ctx context.Context, s *SQLite, scan func(scanner) (T, error), b bound[T], query string, args ...any) (out []T, more bool, err error) {
	if err := s.files.intact(); err != nil {
		return nil, false, err
	}
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, false, broken("read", err)
	}
	defer rows.Close()
	for bytes := 0; rows.Next(); {
		if b.rows > 0 && len(out) == b.rows || b.bytes > 0 && bytes >= b.bytes {
			return out, true, nil
		}
		v, err := scan(rows)
		if err != nil {
			return nil, false, broken("read", err)
		}
		if b.size != nil {
			bytes += b.size(v)
		}
		out = append(out, v)
	}
	return out, false, broken("read", rows.Err())
}
