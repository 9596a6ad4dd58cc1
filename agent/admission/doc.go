// Package admission finds, before anything is stopped, what projects need and this device does not have: devices that are missing
// or that two services want, more memory than there is, protections that are missing.
//
// It is pure: the input is a [Machine] and projects, the output conflicts with their paths in the Compose files. Conflicts of
// networks (ports, addresses, listeners, routes) are found by agent/network.
package admission
