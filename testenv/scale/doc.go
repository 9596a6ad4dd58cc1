// Package scale publishes a large fleet as its owner would, with the program of this repository, to real registries, and
// measures it: how long checking and planning take, how fast states are published beside raw requests to the same
// registry, how much memory that takes, and that a run which is killed half way is taken up.
package scale
