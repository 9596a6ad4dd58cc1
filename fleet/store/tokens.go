package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// The column device has all ids of a token, in order, with a space between two: no id has one.
const tokenColumns = "id, device, hash, created, revoked"

// AddTokens implements [Tokens].
func (s *SQLite) AddTokens(ctx context.Context, tokens ...Token) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		for _, t := range tokens {
			n, err := w.change(ctx, "INSERT INTO tokens (id, device, hash, created) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
				t.ID, strings.Join(t.Devices, " "), t.Hash, millis(t.Created))
			if err == nil && n == 0 {
				return fmt.Errorf("add token %s: %w", t.ID, fault.ErrConflict)
			}
			if err != nil {
				return broken("add token", err)
			}
		}
		return nil
	})
}

// Token implements [Tokens].
func (s *SQLite) Token(ctx context.Context, id string) (Token, error) {
	t, err := scanToken(s.token.QueryRowContext(ctx, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Token{}, fmt.Errorf("token: %w", fault.ErrNotFound)
	}
	return t, broken("read token", err)
}

// ListTokens implements [Tokens].
func (s *SQLite) ListTokens(ctx context.Context, device string) ([]Token, error) {
	query, args := "SELECT "+tokenColumns+" FROM tokens", []any{}
	if device != "" {
		query, args = query+" WHERE instr(' ' || device || ' ', ' ' || ? || ' ') > 0", []any{device}
	}
	all, _, err := collect(ctx, s, scanToken, bound[Token]{}, query+" ORDER BY device, created, id", args...)
	return all, err
}

// RevokeToken implements [Tokens].
func (s *SQLite) RevokeToken(ctx context.Context, id string, when time.Time) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		n, err := w.change(ctx, "UPDATE tokens SET revoked = iif(revoked = 0, ?, revoked) WHERE id = ?", millis(when), id)
		if err == nil && n == 0 {
			return fmt.Errorf("revoke token %s: %w", id, fault.ErrNotFound)
		}
		return broken("revoke token", err)
	})
}

// TokenChanges implements [Tokens].
func (s *SQLite) TokenChanges(ctx context.Context) (n int64, err error) {
	if err := s.files.intact(); err != nil {
		return 0, err
	}
	err = s.read.QueryRowContext(ctx, "SELECT changes FROM token_changes").Scan(&n)
	return n, broken("read changes of tokens", err)
}

// withdrawTokens ends the tokens of a device that leaves, and returns of how many. It is taken out of those of several devices.
func (w *writer) withdrawTokens(ctx context.Context, device string, when time.Time) (int64, error) {
	own, err := w.change(ctx, "UPDATE tokens SET revoked = ? WHERE device = ? AND revoked = 0", millis(when), device)
	if err != nil {
		return 0, broken("revoke tokens", err)
	}
	shared, err := w.change(ctx, "UPDATE tokens SET device = trim(replace(' ' || device || ' ', ' ' || ? || ' ', ' ')) "+
		"WHERE revoked = 0 AND instr(' ' || device || ' ', ' ' || ? || ' ') > 0", device, device)
	return own + shared, broken("change tokens", err)
}

func scanToken(r scanner) (Token, error) {
	var t Token
	var devices string
	var created, revoked int64
	err := r.Scan(&t.ID, &devices, &t.Hash, &created, &revoked)
	t.Devices = strings.Fields(devices)
	t.Created, t.Revoked = at(created), at(revoked)
	return t, err
}
