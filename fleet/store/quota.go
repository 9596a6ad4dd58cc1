package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Quota bounds the stored data of one device. A gateway and the devices behind it share Children and Bytes,
// whichever token they use; one device behind it, with those behind that, has an eighth of both.
type Quota struct {
	Deployments int   // of one device
	Children    int   // devices behind one gateway
	Bytes       int64 // bodies of a gateway, or of a device without one, and of all devices behind it
}

// DefaultQuota is used unless another one is set.
func DefaultQuota() Quota { return Quota{Deployments: 1000, Children: 1000, Bytes: 32 << 20} }

// SetQuota changes the quota, before reports are taken.
func (s *SQLite) SetQuota(q Quota) { s.quota = q }

// QuotaError names the quota that a report exceeds. It wraps fault.ErrFull.
type QuotaError struct {
	Of   string // device id
	What string // what there is too much of
	Most int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("%s has the most %s that one may have, %d", e.Of, e.What, e.Most)
}

// Unwrap makes it a fault.ErrFull.
func (e *QuotaError) Unwrap() error { return fault.ErrFull }

// gatewayOf is the first part of a device id.
func gatewayOf(id string) string {
	gateway, _, _ := strings.Cut(id, "/")
	return gateway
}

// kib is the charge of a row with a body.
func kib(bodies ...[]byte) int64 {
	n := 1
	for _, b := range bodies {
		n += len(b)
	}
	return int64(n+1023) / 1024
}

// share is the part of a gateway's Children and Bytes that one device behind it, with those behind that, may take: the
// holder of its token cannot keep the gateway's other devices out.
const share = 8

// account is the usage to which a device's reports are charged.
type account struct {
	of       string // the gateway; or a device behind it, and all behind that
	children int    // most
	kib      int64  // most
}

// accounts are the rows of usage to which a device is charged.
func (w *writer) accounts(device string) []account {
	gateway, rest, child := strings.Cut(device, "/")
	out := []account{{gateway, w.quota.Children, w.quota.Bytes / 1024}}
	if child {
		out = append(out, account{gateway + "/" + gatewayOf(rest), max(1, w.quota.Children/share), w.quota.Bytes / 1024 / share})
	}
	return out
}

// over finds the quota that more children, or more KiB, of a device do not fit into; nil: they fit.
func (w *writer) over(ctx context.Context, device string, children int, more int64) (full *QuotaError, err error) {
	for _, a := range w.accounts(device) {
		var had int
		var took int64
		if _, err := w.row(ctx, "SELECT children, kib FROM usage WHERE account = ?", []any{a.of}, &had, &took); err != nil {
			return nil, broken("read usage", err)
		}
		switch {
		case children > 0 && a.of != device && had+children > a.children:
			return &QuotaError{a.of, "devices behind it", int64(a.children)}, nil
		case more > 0 && took+more > a.kib:
			return &QuotaError{a.of, "bytes, with all devices behind it,", a.kib * 1024}, nil
		}
	}
	return nil, nil
}

// charge adds to what a device takes. What grows must fit into the quota; removed deployments of the device make room for it,
// the one named keep excepted.
func (w *writer) charge(ctx context.Context, device, keep string, children int, more int64) error {
	if children == 0 && more == 0 {
		return nil
	}
	for {
		full, err := w.over(ctx, device, children, more)
		if err != nil {
			return err
		}
		if full == nil {
			return w.count(ctx, device, children, more)
		}
		switch freed, err := w.forget(ctx, device, keep); {
		case err != nil:
			return err
		case !freed:
			return full
		}
	}
}

// count adds to usage, whatever the quota.
func (w *writer) count(ctx context.Context, device string, children int, more int64) error {
	for _, a := range w.accounts(device) {
		behind := children
		if a.of == device {
			behind = 0 // it is not behind itself
		}
		if err := w.exec(ctx, `INSERT INTO usage (account, children, kib) VALUES (?, ?, ?)
			ON CONFLICT (account) DO UPDATE SET children = children + ?, kib = kib + ?`, a.of, behind, more, behind, more); err != nil {
			return broken("write usage", err)
		}
	}
	return nil
}

// forget drops the deployment that a device removed longest ago, but not the one named keep; false: there is none.
func (w *writer) forget(ctx context.Context, device, keep string) (bool, error) {
	var id string
	var size int64
	known, err := w.row(ctx, `SELECT id, (length(body) + 1024) / 1024 FROM deployments INDEXED BY deployments_device
		WHERE device = ? AND state = 'removed' AND id <> ? ORDER BY reported LIMIT 1`, []any{device, keep}, &id, &size)
	if err != nil || !known {
		return false, broken("find removed deployments", err)
	}
	if err := w.exec(ctx, "DELETE FROM deployments WHERE device = ? AND id = ?", device, id); err != nil {
		return false, broken("forget deployment", err)
	}
	if err := w.exec(ctx, "UPDATE devices SET deployments = deployments - 1 WHERE id = ?", device); err != nil {
		return false, broken("count deployments", err)
	}
	return true, w.count(ctx, device, 0, -size)
}

// roomFor lets a device have one deployment more, in place of those that it removed longest ago.
func (w *writer) roomFor(ctx context.Context, device string) error {
	var n int
	if _, err := w.row(ctx, "SELECT deployments FROM devices WHERE id = ?", []any{device}, &n); err != nil {
		return broken("count deployments", err)
	}
	for ; n >= w.quota.Deployments; n-- {
		switch freed, err := w.forget(ctx, device, ""); {
		case err != nil:
			return err
		case !freed:
			return &QuotaError{device, "deployments", int64(w.quota.Deployments)}
		}
	}
	return nil
}

// recount finds out anew what counts with a device, after it and those behind it were removed.
func (w *writer) recount(ctx context.Context, device string) error {
	if err := w.exec(ctx, "DELETE FROM usage WHERE account >= ?1 || '/' AND account < ?1 || '0'", device); err != nil {
		return broken("forget usage", err)
	}
	for _, a := range w.accounts(device) {
		from, to := a.of+"/", a.of+"0" // "0" follows "/": everything that begins with a.of/
		if err := w.exec(ctx, `INSERT OR REPLACE INTO usage (account, children, kib) SELECT ?1,
			(SELECT count(*) FROM devices WHERE id > ?2 AND id < ?3),
			(SELECT coalesce(sum((coalesce(length(summary), 0) + coalesce(length(capabilities), 0) + 1024) / 1024), 0) FROM devices WHERE id = ?1 OR id > ?2 AND id < ?3) +
			(SELECT coalesce(sum((length(body) + 1024) / 1024), 0) FROM deployments WHERE device = ?1 OR device > ?2 AND device < ?3)`, a.of, from, to); err != nil {
			return broken("count usage", err)
		}
		if err := w.exec(ctx, "DELETE FROM usage WHERE account = ? AND children = 0 AND kib = 0", a.of); err != nil {
			return broken("forget usage", err)
		}
	}
	return nil
}
