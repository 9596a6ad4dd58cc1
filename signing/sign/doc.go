// Package sign makes key files, signatures and attestations as sigstore's cosign does. It is for the desk: a device signs
// nothing and links none of this.
//
// [Signer.Sign] signs an artifact's digest, [Signer.Attest] signs a statement about it. Both write a sigstore bundle in a
// referrer (what cosign 3 writes) or a layer under cosign's older tags, through a [signing.Store]. Keys in tokens and key
// management services are in sign/remotekey, identities in sign/keyless: their libraries are large, and a program that
// signs with a file does not need them.
//
// # What is cosign's own library, and what is not
//
// Ambient identity providers are cosign's (pkg/providers, without Buildkite's). Its other packages cost more than they save, measured on the
// stripped longshore binary (40.8 MB, 1,008 packages):
//
//   - pkg/cosign, for key files: 1.3 MB and 114 packages (TUF, Rekor and Fulcio clients, which every test that signs would
//     link too) in place of forty lines that call the same three libraries as cosign does;
//   - pkg/cosign/attestation decodes a predicate into Go types and drops the members that they do not have, and its
//     statements have no room for claims beside the digest;
//   - pkg/oci/mutate and pkg/oci/remote write the ".sig" tag with their own transport and without looking whether another
//     signer wrote it at the same time; pkg/cosign/bundle writes a bundle whose bytes vary;
//   - pkg/cosign/pkcs11key needs a build tag, reads PINs from the environment and the terminal itself, and knows no token
//     by its serial number;
//   - pkg/signature links a Kubernetes client: 418 packages.
package sign
