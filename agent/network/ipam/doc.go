// Package ipam decides which subnets, addresses, names and published ports the networks of a device have, and which containers
// are the active backends of a service. It is pure: [State] is a value, [State.Prepare] and the other methods change it, and they
// get facts about the machine through a [Device]. Package network applies a state to the kernel and saves it.
package ipam
