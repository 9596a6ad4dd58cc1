// Package audit inspects and checks artifacts in a registry: their type and content, their claimed signers,
// and, from a device's state down to its last image, the results of a device's checks.
//
// [Inspect] checks digests and documents, but no signatures. [Chain] calls a [Judge] for every
// artifact and reports what was checked, by which key, and what was not. Neither changes anything or
// opens a connection: both read through signing.Source.
package audit
