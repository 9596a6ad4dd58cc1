// Package network gives the containers of a project their networks, in-process: bridges, addresses, names and published ports.
//
// The entry point is [Open]; a [Manager] prepares a project's networks, attaches containers to them and removes them again.
// The decisions (subnets, addresses, backends, names) are in package ipam, the nftables table in package nft; this package applies
// a state to the kernel, with netlink and that table. It starts no helper programs and touches nothing that it did not create.
// Names, addresses and options of a project are those that agent/compose accepted; they are not checked again.
//
// Every call may be repeated, and may be interrupted at any instruction: first the objects that the new state does not have
// are removed, then the state is saved, then the new objects are created; so [Manager.Restore] completes an interrupted call. The
// repeated call does too, except for links of other containers that it removed: a call that fails creates those again at
// once, or leaves them to Restore.
//
// # Why containers share no link
//
// Each container has its address as a /32 with the bridge as gateway. Everything it sends, also to its neighbour on the
// same bridge, is routed by the host. So a service address (VIP) can be rewritten to the address of the container that
// serves it and the replies come back through the same rewriting, while both sides still see each other's true address.
// The alternative, one subnet on the link with source rewriting for neighbours, hides the address of the client.
//
// # Why names never change
//
// Hosts files map a service's name to its VIP, which the service keeps as long as the project has it. The active backends are
// elements of nftables maps, see [Manager.Activate]: one element with the container, or one for each share when there are
// several backends, of which each new connection draws one. So a hosts file is complete before its container starts and
// stays valid when other containers are replaced, without a name server and while this program does not run.
//
// # Why there are two copies of the state
//
// The [Store] survives a power cut. But when agent.db is damaged and replaced, containers continue to run, and only the state has
// their addresses. So after each write to the store a copy is written to the run directory, which lives as long as
// the containers. The copy is never newer than the store, so a complete state in the store is used, and the copy only when
// the store has none. A kill between the two writes leaves a copy from before the last change, which the kernel does not
// have yet; the next start of the program updates the copy.
package network
