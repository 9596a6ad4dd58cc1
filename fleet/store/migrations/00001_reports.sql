-- +goose Up
CREATE TABLE devices (
    id           TEXT PRIMARY KEY,
    capabilities BLOB,                       -- NULL: never reported
    alarm        INTEGER NOT NULL DEFAULT 0,
    epoch        INTEGER NOT NULL DEFAULT 0, -- ordinal in epochs; 0: none told
    sequence     INTEGER NOT NULL DEFAULT 0, -- bits of a uint64
    first_heard  INTEGER NOT NULL,           -- milliseconds since 1970, as all times here
    last_heard   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX devices_alarm ON devices (id) WHERE alarm = 1;

CREATE TABLE deployments (
    device   TEXT NOT NULL,
    id       TEXT NOT NULL,
    state    TEXT NOT NULL,
    body     BLOB NOT NULL,
    epoch    INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    PRIMARY KEY (device, id)
) WITHOUT ROWID;
CREATE INDEX deployments_state ON deployments (state, device, id);

-- The epochs of a device's agent, numbered as they were first seen.
CREATE TABLE epochs (
    device  TEXT NOT NULL,
    epoch   TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (device, epoch)
) WITHOUT ROWID;

CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    device  TEXT NOT NULL,
    hash    BLOB NOT NULL,
    created INTEGER NOT NULL,
    revoked INTEGER NOT NULL DEFAULT 0 -- 0: valid
) WITHOUT ROWID;
CREATE INDEX tokens_device ON tokens (device, created);

-- +goose Down
DROP TABLE tokens;
DROP TABLE epochs;
DROP TABLE deployments;
DROP TABLE devices;
