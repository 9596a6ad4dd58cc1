// Package trust holds the policy that says who must have signed what (trust.yaml), and decides by it.
//
// [Parse] reads it: rules by scope, named signers with the time in which they are trusted, thresholds, what is revoked.
// [Policy.Decide] holds one artifact against it; a [Decision] tells the whole way to its answer. Nothing here opens a
// connection but through the sources it is given, and the time is a parameter.
//
// # How signers are counted
//
// A threshold counts different people with different keys. Who signed is a principal, the fingerprint of a key or issuer
// and subject of a certificate; principals that ever used one key are one. A signer of the policy counts for one
// principal at most, and a principal for one signer: two names of one key are one, a key and an identity whose
// certificate has the same key are one, and a pattern that matches many people counts one of them.
//
// # What never counts
//
// A signature by a revoked key, as a key or inside a certificate; a signature by a key outside its time, by the clock that
// the caller gives; anything about a revoked digest. What a signature says of its own time is shown and decides nothing.
//
// # The policy that goes on by itself
//
// A policy with a trust section is followed by the next version when enough of the signers of both have signed it:
// [Policy.Follow] decides about one, [Follower] holds the one in force on a device, [Propose] and [Endorse] bring one onto its
// way, [History] goes through them all. TestNextVersion lists what may be found in its place, and what becomes of that.
package trust
