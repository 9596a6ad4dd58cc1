// Package enroll is the protocol by which a device gets its identity from a manager: a certificate for a key that the device made
// itself. Both sides use it, device and manager; what the manager decides is in fleet/enroll.
//
// # Protocol
//
// The device connects to the address of mutual TLS and offers the application protocol [Protocol] (ALPN), with a certificate that it
// signed itself. TLS 1.3 proves that the device has the key, for this connection only: a request that was recorded is worth nothing,
// and a proxy that ends TLS cannot pass one on. Names and dates of that certificate do not count. The device sends a [Request] by
// POST [Path] and gets an [Answer]. The answer to a key stays the same until an operator changes it, so the device sends the request
// again until it is approved, also after a restart.
//
// An enrolled device sends the same request, by mutual TLS with its certificate, to renew it; and on [Protocol] when that has expired.
//
// # The manager first
//
// A device sends nothing before it has authenticated the manager, see [Trust]: by a trust bundle that it was given, or by the
// fingerprint of an authority in it. The names of hosts do not count.
//
// Entry points are [Client] and [ServerConfig]. TestProxy shows what a proxy that ends TLS meets.
package enroll
