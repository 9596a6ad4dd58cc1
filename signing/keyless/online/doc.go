// Package online makes keyless signatures, which needs connections: to an identity provider that says who one is, to a
// certificate authority (Fulcio) that writes it into a certificate, to a transparency log (Rekor) and a timestamp authority
// that say when. What they answered is in the bundle, so that signing/keyless verifies it without any of them.
//
// Only the command line tool links it.
package online
