// Package registry carries bytes to and from places: registries that speak the OCI distribution protocol, their mirrors,
// and OCI layouts on disk, which are equal targets.
//
// [New] makes a [Client] from [Options]; [Client.Open] gives a [Repository], which is where all reading and writing
// happens. [Repository.Publish] pushes an artifact in the one order in which a reader never sees half of it or an
// unsigned tag. [Layout] is the small durable content store of a device.
//
// Nothing that a registry says is believed: every body is bounded, and whatever is asked for by digest is hashed here
// while it streams. A place that could not be asked is [fault.ErrTemporary], never "not there": a missing signature and
// a registry that is down must not look the same. Mirrors are asked in their order before the registry itself, for reads
// only; only the registry itself may say that something does not exist.
//
// Errors are [*Error]s: they name the operation and the reference and wrap one sentinel of artifacts/fault. They never
// hold a secret, which is why they never hold a URL with its query either: signed download links are secrets.
//
// The client keeps no clock and reads no environment of its own; both come in through Options.
package registry
