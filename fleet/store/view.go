package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const deviceColumns = "id, capabilities, alarm, first_heard, last_heard"

// Device implements [View].
func (s *SQLite) Device(ctx context.Context, id string) (Device, error) {
	d, err := scanDevice(s.read.QueryRowContext(ctx, "SELECT "+deviceColumns+" FROM devices WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return Device{}, fmt.Errorf("device %s: %w", id, fault.ErrNotFound)
	}
	return d, broken("read device", err)
}

// Devices implements [View].
func (s *SQLite) Devices(ctx context.Context, q DeviceQuery) ([]Device, error) {
	query := "SELECT " + deviceColumns + " FROM devices WHERE id > ? ORDER BY id LIMIT ?"
	if q.Alarm {
		query = "SELECT " + deviceColumns + " FROM devices WHERE id > ? AND alarm = 1 ORDER BY id LIMIT ?"
	}
	return collect(ctx, s.read, scanDevice, query, q.After, q.Limit)
}

// Deployments implements [View].
func (s *SQLite) Deployments(ctx context.Context, q DeploymentQuery) ([]Deployment, error) {
	query, args := "SELECT device, id, state, body, since, reported FROM deployments WHERE (device, id) > (?, ?)", []any{q.After[0], q.After[1]}
	where := func(condition string, value string) {
		if value != "" {
			query, args = query+" AND "+condition, append(args, value)
		}
	}
	where("device = ?", q.Device)
	where("device >= ?", q.From)
	where("device <= ?", q.To)
	where("state = ?", string(q.State))
	return collect(ctx, s.read, scanDeployment, query+" ORDER BY device, id LIMIT ?", append(args, q.Limit)...)
}

// Summary implements [View].
func (s *SQLite) Summary(ctx context.Context) (Summary, error) {
	out := Summary{Deployments: map[margo.State]int{}}
	row := s.read.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(alarm), 0) FROM devices")
	if err := row.Scan(&out.Devices, &out.Alarms); err != nil {
		return Summary{}, broken("count devices", err)
	}
	type count struct {
		state margo.State
		n     int
	}
	counts, err := collect(ctx, s.read, func(r scanner) (count, error) {
		var c count
		err := r.Scan(&c.state, &c.n)
		return c, err
	},
		"SELECT state, count(*) FROM deployments GROUP BY state")
	for _, c := range counts {
		out.Deployments[c.state] = c.n
	}
	return out, err
}

type scanner interface{ Scan(into ...any) error }

func scanDevice(r scanner) (Device, error) {
	var d Device
	var first, last int64
	err := r.Scan(&d.ID, &d.Capabilities, &d.Alarm, &first, &last)
	d.FirstHeard, d.LastHeard = at(first), at(last)
	return d, err
}

func scanDeployment(r scanner) (Deployment, error) {
	var d Deployment
	var since, reported int64
	err := r.Scan(&d.Device, &d.ID, &d.State, &d.Body, &since, &reported)
	d.Since, d.Reported = at(since), at(reported)
	return d, err
}

func collect[T any](ctx context.Context, db *sql.DB, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, broken("read", err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, broken("read", err)
		}
		out = append(out, v)
	}
	return out, broken("read", rows.Err())
}
