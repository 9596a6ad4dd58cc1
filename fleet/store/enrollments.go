package store

import (
	"cmp"
	"context"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	enrollmentColumns = "key, state, device, reason, first, asked, decided, expires, certified, wipe, address, credential, about"
	joinTokenColumns  = "id, device, hash, created, expires, used, key, revoked"
	askedEvery        = time.Minute // how exactly the last request of a key is known
)

// RequestEnrollment implements [Enrollments].
func (s *SQLite) RequestEnrollment(ctx context.Context, r EnrollmentRequest) (Enrollment, error) {
	return answer(ctx, s.writer, func(ctx context.Context, w *writer) (Enrollment, error) { return w.request(ctx, r) })
}

func (w *writer) request(ctx context.Context, r EnrollmentRequest) (Enrollment, error) {
	e, known, err := w.enrollment(ctx, r.Key)
	if err != nil {
		return Enrollment{}, err
	}
	if e.State == EnrollmentExpected && !e.Expires.IsZero() && r.At.After(e.Expires) {
		known, e.State = false, EnrollmentPending // the approval came too early
	}
	switch {
	case known && e.State == EnrollmentExpected:
		e.State = EnrollmentApproved
	case known && e.State != EnrollmentPending:
		if r.At.Sub(e.Asked).Abs() < askedEvery {
			return e, nil
		}
	case r.Token != nil:
		device, err := w.join(ctx, r)
		if err != nil {
			return Enrollment{}, err
		}
		e.State, e.Device, e.Decided = EnrollmentApproved, device, r.At
	case known && e.Device == r.Device && r.At.Sub(e.Asked).Abs() < askedEvery:
		return e, nil
	default:
		if !known {
			if err := w.room(ctx, r); err != nil {
				return Enrollment{}, err
			}
		}
		e.State, e.Device = EnrollmentPending, r.Device
	}
	if e.First.IsZero() {
		e.First, e.Address = r.At, r.Address
	}
	e.Key, e.Asked, e.About = r.Key, r.At, r.About
	return e, w.putEnrollment(ctx, e)
}

// room makes sure that one more pending key has room. Keys that have not asked for long do not count.
func (w *writer) room(ctx context.Context, r EnrollmentRequest) error {
	if err := w.exec(ctx, "DELETE FROM enrollments WHERE state = 'pending' AND asked < ?", millis(r.At.Add(-PendingAge))); err != nil {
		return broken("remove old requests", err)
	}
	var all, here int
	_, err := w.row(ctx, "SELECT count(*), count(*) FILTER (WHERE address = ?) FROM enrollments WHERE state = 'pending'", []any{r.Address}, &all, &here)
	switch {
	case err != nil:
		return broken("count requests", err)
	case all >= MaxPending:
		return fmt.Errorf("%d devices wait for a decision already: %w", all, fault.ErrFull)
	case here >= MaxPendingAddress:
		return fmt.Errorf("%d devices at %s wait for a decision already: %w", here, r.Address, fault.ErrFull)
	}
	return nil
}

// join uses up a join token, and returns the id that the device gets.
func (w *writer) join(ctx context.Context, r EnrollmentRequest) (device string, err error) {
	var t JoinToken
	var expires, used, revoked int64
	known, err := w.row(ctx, "SELECT device, hash, expires, used, key, revoked FROM join_tokens WHERE id = ?", []any{r.Token.ID}, &t.Device, &t.Hash, &expires, &used, &t.Key, &revoked)
	if err != nil {
		return "", broken("read join token", err)
	}
	deny := func(why string) (string, error) { return "", fmt.Errorf("%s: %w", why, fault.ErrDenied) }
	switch device = cmp.Or(r.Device, t.Device); {
	case !known || subtle.ConstantTimeCompare(t.Hash, r.Token.Hash) != 1 || revoked != 0:
		return deny("the join token is not known, or revoked")
	case used != 0:
		return deny("the join token was used by another device: each is for one device")
	case r.At.After(at(expires)):
		return deny("the join token expired at " + at(expires).Format(time.RFC3339))
	case t.Device != "" && device != t.Device:
		return deny("the join token is for another device than " + device)
	case device == "":
		return "", fmt.Errorf("the join token is for any device, and this one gives no id: %w", fault.ErrInvalid)
	}
	if err := w.free(ctx, r.Key, device); err != nil {
		return "", err
	}
	return device, broken("use join token", w.exec(ctx, "UPDATE join_tokens SET used = ?, key = ? WHERE id = ?", millis(r.At), r.Key, r.Token.ID))
}

// free reports whether a key may have an id: no other key has it.
func (w *writer) free(ctx context.Context, key, device string) error {
	var other string
	taken, err := w.row(ctx, "SELECT key FROM enrollments WHERE device = ? AND key <> ? AND state IN ('approved', 'expected')", []any{device, key}, &other)
	if err != nil {
		return broken("find device", err)
	}
	if taken {
		return fmt.Errorf("%s is enrolled with another key, %s: %w", device, other, fault.ErrConflict)
	}
	return nil
}

// ApproveEnrollment implements [Enrollments].
func (s *SQLite) ApproveEnrollment(ctx context.Context, a Approval) (Enrollment, error) {
	return answer(ctx, s.writer, func(ctx context.Context, w *writer) (Enrollment, error) {
		e, known, err := w.enrollment(ctx, a.Key)
		if err == nil {
			err = w.free(ctx, a.Key, a.Device)
		}
		switch {
		case err != nil:
			return e, err
		case known && e.State == EnrollmentApproved && e.Device != a.Device:
			return e, fmt.Errorf("the key %s is enrolled as %s: %w", a.Key, e.Device, fault.ErrConflict)
		case known && e.State == EnrollmentApproved:
			return e, nil
		case known && e.State != EnrollmentExpected:
			e.State = EnrollmentApproved
		case !a.Ahead:
			return e, fmt.Errorf("no device with the key %s has asked: %w", a.Key, fault.ErrNotFound)
		default:
			e.Key, e.State, e.First, e.Expires = a.Key, EnrollmentExpected, a.At, a.Expires
		}
		e.Device, e.Decided, e.Reason, e.Wipe = a.Device, a.At, "", false
		return e, w.putEnrollment(ctx, e)
	})
}

// DenyEnrollment implements [Enrollments].
func (s *SQLite) DenyEnrollment(ctx context.Context, key, reason string, when time.Time) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		e, known, err := w.enrollment(ctx, key)
		switch {
		case err != nil:
			return err
		case !known:
			return fmt.Errorf("no device with the key %s has asked: %w", key, fault.ErrNotFound)
		case e.State == EnrollmentApproved || e.State == EnrollmentRemoved:
			return fmt.Errorf("the key %s is %s, as %s: %w", key, e.State, e.Device, fault.ErrConflict)
		}
		e.State, e.Reason, e.Decided = EnrollmentDenied, reason, when
		return w.putEnrollment(ctx, e)
	})
}

// RemoveDevice implements [Enrollments].
func (s *SQLite) RemoveDevice(ctx context.Context, device string, wipe bool, when time.Time) (Enrollment, error) {
	return answer(ctx, s.writer, func(ctx context.Context, w *writer) (e Enrollment, err error) {
		var key string
		enrolled, err := w.row(ctx, "SELECT key FROM enrollments WHERE device = ? AND state IN ('approved', 'expected')", []any{device}, &key)
		switch {
		case err != nil:
			return e, broken("find device", err)
		case wipe && !enrolled:
			return e, fmt.Errorf("%s is not enrolled: %w", device, fault.ErrNotFound)
		}
		if e, _, err = w.enrollment(ctx, key); err != nil {
			return e, err
		}
		asked := e.State == EnrollmentApproved
		e.State, e.Wipe, e.Decided = EnrollmentRemoved, wipe, when
		if asked {
			err = w.putEnrollment(ctx, e)
		} else { // nothing was given to it
			err = broken("remove approval", w.exec(ctx, "DELETE FROM enrollments WHERE key = ?", key))
		}
		if err != nil {
			return e, err
		}
		given, err := w.change(ctx, "DELETE FROM manifests WHERE client = ?", device)
		if err != nil {
			return e, broken("remove manifest", err)
		}
		tokens, err := w.withdrawTokens(ctx, device, when)
		if err != nil {
			return e, err
		}
		heard, err := w.deleteDevice(ctx, device)
		if err == nil && !enrolled && !heard && given+tokens == 0 {
			err = fmt.Errorf("there is no device %s: %w", device, fault.ErrNotFound)
		}
		return e, err
	})
}

// NoteGrant implements [Enrollments].
func (s *SQLite) NoteGrant(ctx context.Context, key, credential string, until time.Time) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		n, err := w.change(ctx, "UPDATE enrollments SET certified = ?, credential = coalesce(nullif(?, ''), credential) WHERE key = ? AND state = 'approved'", millis(until), credential, key)
		if err == nil && n == 0 {
			return fmt.Errorf("the key %s is not approved any more: %w", key, fault.ErrConflict)
		}
		return broken("note a grant", err)
	})
}

// NoteWithdrawal implements [Enrollments].
func (s *SQLite) NoteWithdrawal(ctx context.Context, key string) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		return broken("note a withdrawal", w.exec(ctx, "UPDATE enrollments SET credential = '' WHERE key = ? AND state = 'removed'", key))
	})
}

// Enrollment implements [Enrollments].
func (s *SQLite) Enrollment(ctx context.Context, key string) (Enrollment, error) {
	e, err := scanEnrollment(s.read.QueryRowContext(ctx, "SELECT "+enrollmentColumns+" FROM enrollments WHERE key = ?", key))
	if errors.Is(err, sql.ErrNoRows) {
		return Enrollment{}, fmt.Errorf("key %s: %w", key, fault.ErrNotFound)
	}
	return e, broken("read enrollment", err)
}

// ListEnrollments implements [Enrollments].
func (s *SQLite) ListEnrollments(ctx context.Context, q EnrollmentQuery) ([]Enrollment, error) {
	query, args := "SELECT "+enrollmentColumns+" FROM enrollments WHERE 1", []any{}
	if q.State != "" {
		query, args = query+" AND state = ?", append(args, string(q.State))
	}
	if q.Withdraw {
		query += " AND state = 'removed' AND credential <> ''"
	}
	all, _, err := collect(ctx, s, scanEnrollment, bound[Enrollment]{}, query+" ORDER BY device, first, key", args...)
	return all, err
}

// EnrollmentChanges implements [Enrollments].
func (s *SQLite) EnrollmentChanges(ctx context.Context) (n int64, err error) {
	err = s.read.QueryRowContext(ctx, "SELECT changes FROM enrollment_changes").Scan(&n)
	return n, broken("read changes of enrollments", err)
}

func (w *writer) enrollment(ctx context.Context, key string) (e Enrollment, known bool, err error) {
	s, err := w.stmt(ctx, "SELECT "+enrollmentColumns+" FROM enrollments WHERE key = ?")
	if err == nil {
		e, err = scanEnrollment(s.QueryRowContext(ctx, key))
	}
	if errors.Is(err, sql.ErrNoRows) {
		return Enrollment{}, false, nil
	}
	return e, err == nil, broken("read enrollment", err)
}

func (w *writer) putEnrollment(ctx context.Context, e Enrollment) error {
	return broken("write enrollment", w.exec(ctx, "INSERT INTO enrollments ("+enrollmentColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET state = excluded.state, device = excluded.device, reason = excluded.reason, first = excluded.first,
		asked = excluded.asked, decided = excluded.decided, expires = excluded.expires, certified = excluded.certified, wipe = excluded.wipe,
		address = excluded.address, credential = excluded.credential, about = excluded.about`,
		e.Key, string(e.State), e.Device, e.Reason, stamp(e.First), stamp(e.Asked), stamp(e.Decided), stamp(e.Expires), stamp(e.Certified), e.Wipe, e.Address, e.Credential, e.About))
}

// stamp is millis, with 0 for the zero time.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return millis(t)
}

func scanEnrollment(r scanner) (Enrollment, error) {
	var e Enrollment
	var first, asked, decided, expires, certified int64
	err := r.Scan(&e.Key, &e.State, &e.Device, &e.Reason, &first, &asked, &decided, &expires, &certified, &e.Wipe, &e.Address, &e.Credential, &e.About)
	e.First, e.Asked, e.Decided, e.Expires, e.Certified = at(first), at(asked), at(decided), at(expires), at(certified)
	return e, err
}

// AddJoinTokens implements [Enrollments].
func (s *SQLite) AddJoinTokens(ctx context.Context, tokens ...JoinToken) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		for _, t := range tokens {
			if err := w.exec(ctx, "INSERT INTO join_tokens (id, device, hash, created, expires) VALUES (?, ?, ?, ?, ?)",
				t.ID, t.Device, t.Hash, millis(t.Created), millis(t.Expires)); err != nil {
				return broken("add join token", err)
			}
		}
		return broken("remove old join tokens", w.exec(ctx, "DELETE FROM join_tokens WHERE expires < ?", millis(tokens[0].Created.Add(-JoinTokenAge))))
	})
}

// ListJoinTokens implements [Enrollments].
func (s *SQLite) ListJoinTokens(ctx context.Context) ([]JoinToken, error) {
	all, _, err := collect(ctx, s, scanJoinToken, bound[JoinToken]{}, "SELECT "+joinTokenColumns+" FROM join_tokens ORDER BY created, id")
	return all, err
}

// RevokeJoinToken implements [Enrollments].
func (s *SQLite) RevokeJoinToken(ctx context.Context, id string, when time.Time) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		n, err := w.change(ctx, "UPDATE join_tokens SET revoked = iif(revoked = 0, ?, revoked) WHERE id = ?", millis(when), id)
		if err == nil && n == 0 {
			return fmt.Errorf("join token %s: %w", id, fault.ErrNotFound)
		}
		return broken("revoke join token", err)
	})
}

func scanJoinToken(r scanner) (JoinToken, error) {
	var t JoinToken
	var created, expires, used, revoked int64
	err := r.Scan(&t.ID, &t.Device, &t.Hash, &created, &expires, &used, &t.Key, &revoked)
	t.Created, t.Expires, t.Used, t.Revoked = at(created), at(expires), at(used), at(revoked)
	return t, err
}
