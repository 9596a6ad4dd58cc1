// Package admission finds out, before anything is stopped, what projects ask for that this device cannot give: devices
// that are not there or that two want, more memory than there is, protections that are missing.
//
// It is pure: what there is comes in as a [Machine], what is wanted as projects, and out come clashes with their places in
// the Compose files. What only the networks know (ports, addresses, listeners, routes) they tell themselves.
package admission
