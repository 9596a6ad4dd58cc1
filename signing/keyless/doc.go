// Package keyless verifies signatures that were made with certificates, by the identities that may sign.
//
// An [Identity] was authenticated by an identity provider: sigstore's certificate authority issued a certificate of ten minutes
// for its issuer and subject, and logs and a timestamp authority prove that the signature was made in this time. The bundle
// has all of it, and a [Root] (sigstore's trusted_root.json) has the trusted services. An [Authority] is the older way: a
// long-lived certificate from the user's own certificate authority.
//
// This package opens no connections: a device without a network verifies signatures of a build on the internet.
//
// # What it costs a device
//
// sigstore's library is the only one that supports all forms of log entries and timestamps, and it is linked into the agent:
// 3.5 MiB of a stripped binary (28.5 MiB without it, 32.0 MiB with it on amd64, by plain flags, when that was decided) and
// less than 1 MiB of the resident memory of an idle agent (41.4 MiB and 42.1 MiB). A second program for devices that trust
// identities would cost more. cosign's own library, which was linked before, cost 5.4 MiB and 6.6 MiB.
//
// # How a trusted root ages
//
// Logs and authorities are replaced by new ones from time to time. A device with an old root still verifies older
// signatures, and rejects signatures of new services with [ErrOldRoot]: the error has the name of the unknown
// service and the date of the root ([Root.Dated]), which is the start of its newest member.
package keyless
