// Package keyless holds signatures that were made with certificates against the people and machines that may sign.
//
// An [Identity] is who an identity provider said it was: sigstore's certificate authority wrote issuer and subject into a
// certificate of ten minutes, logs and a clock that others keep say that the signature was made in them. All of it is in
// the bundle, and a [Root] (sigstore's trusted_root.json) says whose word counts. An [Authority] is the older way: a
// certificate of a year from a certificate authority of one's own.
//
// Nothing here opens a connection, ever: a device without a route to anywhere verifies what a build on the internet signed.
//
// # What it costs a device
//
// sigstore's library is the only one that knows all forms of log entries and timestamps, and it is linked into the agent:
// 3.5 MiB of a stripped binary (28.5 MiB without it, 32.0 MiB with it on amd64, by plain flags, when that was decided) and
// less than 1 MiB of the resident memory of an idle agent (41.4 MiB and 42.1 MiB). A second program for devices that trust
// identities would cost their makers more. cosign's own library, which was linked before, cost 5.4 MiB and 6.6 MiB.
//
// # How a trusted root ages
//
// Logs and authorities are replaced by new ones from time to time. A device with an old root goes on verifying what was
// signed before that, and refuses what the new ones vouch for with [ErrOldRoot]: the error has the name of what is not
// known and the date of the root ([Root.Dated]), which is when the newest thing in it began.
package keyless
