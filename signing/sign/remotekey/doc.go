// Package remotekey signs with keys that never leave where they are: in a token behind PKCS#11, in a key management service
// of a cloud or of HashiCorp Vault, behind a program that speaks sigstore's plugin protocol.
//
// Only the command line tool links it: the makers' libraries are larger than everything else of it, and a device signs
// nothing. PKCS#11 modules are C libraries, so that only a build with cgo can load them.
package remotekey
