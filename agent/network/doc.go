// Package network gives the containers of a project their networks, in-process: bridges, addresses, names and published ports.
//
// The entry point is [Open]; a [Manager] prepares a project's networks, attaches containers to them and takes all away
// again. It uses netlink and one nftables table of its own, no helper programs, and touches nothing that it did not make.
// Every call may be repeated, and may be cut short at any instruction: what a decision ends is first removed from the kernel, then
// the decision is made durable, then the new things are made; so [Manager.Restore] finishes the work. The same call does too, but
// for the links of other containers that it took away: a call that fails makes those again at once, or else leaves them to Restore.
//
// # Why containers do not see each other's link
//
// Each container has its address as a /32 with the bridge as gateway. Everything it sends, also to its neighbour on the
// same bridge, is routed by the host. So a service address (VIP) can be rewritten to the address of the container that
// serves it and the replies come back through the same rewriting, while both sides still see each other's true address.
// The alternative, one subnet on the link with source rewriting for neighbours, hides who is calling.
//
// # Why names never change
//
// Hosts files name services by their VIP, which belongs to the service for as long as the project has it. Which
// containers answer are elements of nftables maps, see [Manager.Switch]: one that gives the container, or as many as there are
// shares when several answer, of which each new connection draws one. So a hosts file is complete before its container starts,
// stays true when other containers are replaced, and needs no name server, nor this program, to be alive.
//
// # Why there are two copies of the state
//
// The [Store] outlives a power cut; but when agent.db is damaged and replaced, containers run on, and only the state tells what
// they have. So each write to the store is followed by one of a copy in the run directory, which lives as long as the
// containers. The order decides which one counts: the copy is never newer than the store, so a whole state in the store wins;
// the copy is read only when the store has none. A kill between the two writes leaves a copy from before the last change, of
// which the kernel has nothing yet; the next start of the program brings the copy up to date.
package network
