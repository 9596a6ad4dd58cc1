// Package identity says who is at the other end of a connection, by the Margo Identity and Authorization Framework and its WFM
// Identity Profile (1.0.0-rc.3): mutual TLS in which both sides present an X.509-SVID.
//
// A workload fleet manager is spiffe://TRUST-DOMAIN/margo/wfm/MANAGER, a client of it is
// spiffe://TRUST-DOMAIN/margo/wfm/MANAGER/client/CLIENT. Each side takes from its own SVID who the other side has to be: a client
// talks to its manager only, a manager to its own clients only. Names of hosts do not count. What a client may do is not decided
// here: that is the manager's accepted-client policy.
//
// Entry points are [ServerConfig] and [ClientConfig]; both ask a [Source] for the credentials at every handshake, so that files can
// be replaced while a program runs. The package does no I/O; identity/files reads credentials from files. TestPeers holds what is
// rejected.
//
// # Why a folder of its own
//
// Both sides of the API need it, fleet and agent, which do not import each other; signing is about artifacts, by digest, and
// registry about bytes. SPIFFE's library stays below this folder.
package identity
