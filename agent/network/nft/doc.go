// Package nft has the nftables tables of the container networks, one for each address family: their fixed rules, their elements,
// derived from a state of package ipam, and the conntrack entries that a change makes stale.
//
// A [Table] applies changes in one transaction: the kernel applies all of it or nothing.
package nft
