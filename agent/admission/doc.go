// Package admission finds out, before anything is stopped, what projects ask for that this device cannot give: ports that
// two of them want, devices that are not there, more memory than there is, protections that are missing.
//
// It is pure: what there is comes in as a [Machine], what is wanted as projects, and out come clashes with their places in
// the Compose files. What only the networks know (listeners, routes) they tell themselves.
package admission
