// Package identity signs as an identity instead of with a key, which needs connections: to an identity provider that says who one is, to a
// certificate authority (Fulcio) that writes it into a certificate, to a transparency log (Rekor) and a timestamp authority
// that say when. What they answered is in the bundle, so that signing/keyless verifies it without any of them.
//
// Programs that do not sign as an identity leave it out: its clients are large.
package identity
