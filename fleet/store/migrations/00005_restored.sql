-- +goose Up
-- 1: from a backup, and the device has not reported its capabilities since.
ALTER TABLE devices ADD COLUMN restored INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE devices DROP COLUMN restored;
