-- +goose Up
-- Large columns are the last of their tables: what stands before them is read without them.
CREATE TABLE devices (
    id           TEXT PRIMARY KEY,
    alarm        INTEGER NOT NULL DEFAULT 0,
    interval     INTEGER NOT NULL DEFAULT 0, -- milliseconds in which it reports at least once; 0: not known
    deployments  INTEGER NOT NULL DEFAULT 0, -- rows in deployments
    epoch        INTEGER NOT NULL DEFAULT 0, -- ordinal in epochs; 0: none told
    sequence     INTEGER NOT NULL DEFAULT 0, -- bits of a uint64
    first_heard  INTEGER NOT NULL,           -- milliseconds since 1970, as all times here
    last_heard   INTEGER NOT NULL,
    summary      BLOB,
    capabilities BLOB                        -- NULL: never reported
) WITHOUT ROWID;
CREATE INDEX devices_alarm ON devices (id) WHERE alarm = 1;
CREATE INDEX devices_heard ON devices (last_heard, interval, id, alarm);

CREATE TABLE deployments (
    device   TEXT NOT NULL,
    id       TEXT NOT NULL,
    state    TEXT NOT NULL,
    epoch    INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    since    INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (device, id)
) WITHOUT ROWID;
CREATE INDEX deployments_state ON deployments (state, device, id);
CREATE INDEX deployments_device ON deployments (device, state, reported);

-- What a gateway, or a device without one, and all devices behind it take: their quota is one. A device behind a gateway, with
-- those behind it, has a row too.
CREATE TABLE usage (
    account  TEXT PRIMARY KEY, -- the first part of device ids, or the first two
    children INTEGER NOT NULL, -- devices behind it
    kib      INTEGER NOT NULL  -- of bodies, each rounded up
) WITHOUT ROWID;

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

-- Written to find out whether the database takes anything.
CREATE TABLE health (
    one  INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- +goose Down
DROP TABLE health;
DROP TABLE tokens;
DROP TABLE epochs;
DROP TABLE usage;
DROP TABLE deployments;
DROP TABLE devices;
