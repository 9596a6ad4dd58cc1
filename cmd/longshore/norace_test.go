//go:build !race

package main

// fewer is by how much a test of many devices is smaller.
const fewer = 1
