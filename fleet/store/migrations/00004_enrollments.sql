-- +goose Up
-- What is decided about the keys of devices. A key is known by the fingerprint of its public half.
CREATE TABLE enrollments (
    key        TEXT PRIMARY KEY,
    state      TEXT NOT NULL,                -- pending, expected, approved, denied, removed
    device     TEXT NOT NULL,                -- what a pending key asks for; else what is decided
    reason     TEXT NOT NULL DEFAULT '',
    first      INTEGER NOT NULL,             -- when the key was first heard of
    asked      INTEGER NOT NULL DEFAULT 0,   -- last request
    decided    INTEGER NOT NULL DEFAULT 0,
    expires    INTEGER NOT NULL DEFAULT 0,   -- of an approval that waits for its device; 0: never
    certified  INTEGER NOT NULL DEFAULT 0,   -- end of the last certificate
    wipe       INTEGER NOT NULL DEFAULT 0,
    address    TEXT NOT NULL DEFAULT '',     -- that the first request came from
    credential TEXT NOT NULL DEFAULT '',     -- by which the pull credential is withdrawn
    about      BLOB                          -- JSON, what the device reports about itself
) WITHOUT ROWID;
-- An id belongs to one key at a time.
CREATE UNIQUE INDEX enrollments_device ON enrollments (device) WHERE state IN ('approved', 'expected');
CREATE INDEX enrollments_pending ON enrollments (address, asked) WHERE state = 'pending';
CREATE INDEX enrollments_withdraw ON enrollments (key) WHERE state = 'removed' AND credential <> '';

CREATE TABLE join_tokens (
    id      TEXT PRIMARY KEY,
    device  TEXT NOT NULL,              -- the only id that it is for; '': any free one
    hash    BLOB NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    used    INTEGER NOT NULL DEFAULT 0, -- 0: not used
    key     TEXT NOT NULL DEFAULT '',   -- that used it
    revoked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- A number that is another one after each decision.
CREATE TABLE enrollment_changes (
    one     INTEGER PRIMARY KEY,
    changes INTEGER NOT NULL
);
INSERT INTO enrollment_changes (one, changes) VALUES (1, 1);
-- +goose StatementBegin
CREATE TRIGGER enrollment_added AFTER INSERT ON enrollments WHEN new.state <> 'pending' BEGIN
    UPDATE enrollment_changes SET changes = changes + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER enrollment_changed AFTER UPDATE OF state, device ON enrollments WHEN new.state <> old.state OR new.device <> old.device BEGIN
    UPDATE enrollment_changes SET changes = changes + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER enrollment_gone AFTER DELETE ON enrollments WHEN old.state <> 'pending' BEGIN
    UPDATE enrollment_changes SET changes = changes + 1;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER enrollment_gone;
DROP TRIGGER enrollment_changed;
DROP TRIGGER enrollment_added;
DROP TABLE enrollment_changes;
DROP TABLE join_tokens;
DROP TABLE enrollments;
