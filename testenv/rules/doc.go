// Package rules holds the shape of this repository: who may import whom, which library belongs to which folder, what pure
// code may not touch, how long a file may be.
//
// Its test is the package; the tables at its top are the architecture. It parses the sources itself instead of asking the
// go command: go test then knows which files it read and does not answer from its cache when they change, and files of
// other operating systems are seen too.
package rules
