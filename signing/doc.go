// Package signing signs OCI artifacts as sigstore's cosign does, and holds artifacts against keys and policies.
//
// Bytes come and go through a [Store]; nothing here opens a connection. A signature is made by [Signer.Sign], as a
// sigstore bundle in a referrer (what cosign 3 writes) or under cosign's older ".sig" tag, and found and checked by
// [Verify]. [Policy] says which keys an artifact of which repository needs.
//
// # What is always checked
//
// Three checks can be forgotten in a verifier that is built on cosign's library and that otherwise looks right:
//
//   - the claim: the signed bytes must name the digest that was asked for, or a signature copied from another artifact
//     would do;
//   - the predicate: only https://sigstore.dev/cosign/sign/v1 is a signature; another statement that the same key made
//     about the same digest ("the scan failed") is not;
//   - the difference between "there is no signature" and "it could not be read": the second is fault.ErrTemporary, or
//     what the store said, and never passes for the first.
//
// TestClaimIsChecked, TestOnlyTheSignPredicateCounts and TestUnreadableIsNotUnsigned fail without them.
//
// # Why not cosign's own transport
//
// cosign's functions that take a reference drop the errors of single referrers, forget that a registry speaks plain
// HTTP, read without a limit and go to sigstore's servers unless told not to. The functions used here take values.
package signing
