// Package compose turns the compose.yaml of a Compose Archive into the workload that the agent runs.
//
// Start at [Load]; [Pack] and [Check] serve those who publish. The package is pure: it reads the archive it is given and
// nothing else.
//
// # Refuse, never drop
//
// What a service asks for and does not get is found out on a device at night. So every key of the file is held
// against the list of keys that are honoured (support.go), and every other key is refused with its path and position,
// all of them at once. Extensions (x-…) are allowed to mean nothing; only our own (x-longshore-…) must be known.
//
// The file is parsed once, by the parser of compose-go, with aliases and merge keys expanded. Each value is read once, from
// that tree and at its position, by compose-go's parser for it: short forms of volumes and ports, commands, sizes,
// durations, variables, env files, and what happens when services extend one another. Its loader is not used: what it
// gives for a project lacks what a device must refuse (entries that others replace, options and keys that it does not
// know, the entry that a port of a range came from), it stops at the first fault, and it knows no positions. A test holds
// the values of all projects of the corpus against it.
package compose
