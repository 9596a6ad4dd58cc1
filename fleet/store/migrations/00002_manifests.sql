-- +goose Up
-- The State Manifest that each client was given last: its versions only rise, also across restarts.
CREATE TABLE manifests (
    client  TEXT PRIMARY KEY,
    version INTEGER NOT NULL, -- bits of a uint64
    digest  TEXT NOT NULL,    -- of the manifest
    made    TEXT NOT NULL     -- what it was made of
) WITHOUT ROWID;

-- A number that is another one after each change of tokens: who keeps tokens in memory asks for it.
CREATE TABLE token_changes (
    one     INTEGER PRIMARY KEY,
    changes INTEGER NOT NULL
);
INSERT INTO token_changes (one, changes) VALUES (1, 1);
-- +goose StatementBegin
CREATE TRIGGER token_added AFTER INSERT ON tokens BEGIN
    UPDATE token_changes SET changes = changes + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER token_changed AFTER UPDATE ON tokens BEGIN
    UPDATE token_changes SET changes = changes + 1;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER token_changed;
DROP TRIGGER token_added;
DROP TABLE token_changes;
DROP TABLE manifests;
