// Package soak holds the long runs: what shows only after hundreds of rounds, or in an hour. Each prints the seed that its
// random choices come from, and takes it back to make the same ones; a short form of each is among the normal tests.
package soak
