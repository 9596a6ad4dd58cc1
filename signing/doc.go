// Package signing signs OCI artifacts in the formats of sigstore's cosign, and verifies artifacts with keys and policies.
//
// It reads and writes through a [Store] and opens no connections. Package sign creates a signature, as a
// sigstore bundle in a referrer (cosign 3) or under cosign's older ".sig" tag, and [Verify] finds and verifies it.
// Package trust has the policy: the required signers of an artifact by its repository.
//
// # What is always checked
//
// Three checks can be forgotten in a verifier that is built on cosign's library and that otherwise looks right:
//
//   - the claim: the signed bytes must name the requested digest, otherwise a signature that was copied from another
//     artifact would be accepted;
//   - the predicate: only https://sigstore.dev/cosign/sign/v1 is a signature; another statement by the same key
//     about the same digest ("the scan failed") is not;
//   - the difference between "there is no signature" and "it could not be read": the second is fault.ErrTemporary, or
//     the store's error, and is never treated as the first.
//
// TestClaimIsChecked, TestOnlyTheSignPredicateCounts and TestUnreadableIsNotUnsigned fail without them.
//
// # Why not cosign's own transport
//
// cosign's functions that take a reference drop the errors of single referrers, do not support plain
// HTTP in all places, read without a limit and connect to sigstore's servers by default. The functions used here take values.
package signing
