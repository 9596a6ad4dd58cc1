//go:build race

package main

// fewer is by how much a test of many devices is smaller: the race detector takes its time.
const fewer = 4
