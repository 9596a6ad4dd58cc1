// Package registry transfers content to and from places: registries with the OCI distribution API, their mirrors,
// and OCI layouts on disk, with the same operations.
//
// [New] creates a [Client] from [Options]; [Client.Open] returns a [Repository], which has all operations that read and
// write. Package release publishes an artifact in an order in which a reader never gets an incomplete one or an
// unsigned tag. [Layout] is the small durable content store of a device.
//
// Responses are not trusted: every body is bounded, and all content that is requested by digest is hashed here
// while it is read. A failed query is [fault.ErrTemporary], never fault.ErrNotFound: a missing signature and
// an unreachable registry must be different errors. Reads use the mirrors in their order before the registry itself;
// only the registry itself can confirm that something does not exist.
//
// Errors are [*Error]s: they name the operation and the reference and wrap one sentinel of artifacts/fault. They never
// contain a secret, and therefore no URL with its query: signed download links are secrets.
//
// The client uses the clock and the environment only through Options.
package registry
