package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Manifest implements [Manifests].
func (s *SQLite) Manifest(ctx context.Context, client string) (Manifest, error) {
	if err := s.files.intact(); err != nil {
		return Manifest{}, err
	}
	m, err := scanManifest(s.read.QueryRowContext(ctx, "SELECT client, version, digest, made FROM manifests WHERE client = ?", client))
	if errors.Is(err, sql.ErrNoRows) {
		return Manifest{}, fmt.Errorf("manifest of %s: %w", client, fault.ErrNotFound)
	}
	return m, broken("read manifest", err)
}

// ListManifests implements [Manifests].
func (s *SQLite) ListManifests(ctx context.Context) ([]Manifest, error) {
	all, _, err := collect(ctx, s, scanManifest, bound[Manifest]{}, "SELECT client, version, digest, made FROM manifests ORDER BY client")
	return all, err
}

func scanManifest(r scanner) (Manifest, error) {
	var m Manifest
	var version int64
	err := r.Scan(&m.Client, &version, &m.Digest, &m.Made)
	m.Version = uint64(version)
	return m, err
}

// PutManifest implements [Manifests].
func (s *SQLite) PutManifest(ctx context.Context, m Manifest) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		var version int64
		var digest string
		known, err := w.row(ctx, "SELECT version, digest FROM manifests WHERE client = ?", []any{m.Client}, &version, &digest)
		if err != nil {
			return broken("find manifest", err)
		}
		if held := uint64(version); known && (held > m.Version || held == m.Version && digest != m.Digest) {
			return fmt.Errorf("manifest %d of %s: it has got manifest %d: %w", m.Version, m.Client, held, fault.ErrConflict)
		}
		return broken("write manifest", w.exec(ctx, `INSERT INTO manifests (client, version, digest, made) VALUES (?, ?, ?, ?)
			ON CONFLICT (client) DO UPDATE SET version = excluded.version, digest = excluded.digest, made = excluded.made`,
			m.Client, int64(m.Version), m.Digest, m.Made))
	})
}

// Children implements [Manifests].
func (s *SQLite) Children(ctx context.Context, device string) ([]string, error) {
	scan := func(r scanner) (id string, err error) {
		err = r.Scan(&id)
		return id, err
	}
	all, _, err := collect(ctx, s, scan, bound[string]{},
		"SELECT id FROM devices WHERE id > ? AND id < ? AND registered_by = ? AND capabilities IS NOT NULL ORDER BY id", device+"/", device+"0", device)
	return all, err
}
