-- +goose Up
-- The device of the client that registered it: a gateway has the desired state of the children that it registered.
ALTER TABLE devices ADD COLUMN registered_by TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE devices DROP COLUMN registered_by;
