// Package compose turns the compose.yaml of a Compose Archive into the workload that the agent runs.
//
// Start at [Load]; [Pack] and [Check] serve those who publish. compose-go validates the file against the Compose
// Specification and parses its short forms; everything that it would read from elsewhere (other files, remote
// resources, the environment of the process) is kept away from it. The package is pure: it reads the archive it is
// given and nothing else.
//
// # Refuse, never drop
//
// What a service asks for and does not get is found out on a device at night. So every key of the file is held
// against the list of keys that are honoured (support.go), on the tree of the file itself and not on what a library
// made of it, and every other key is refused with its path and position, all of them at once. Extensions (x-…) are
// allowed to mean nothing; only our own (x-longshore-…) must be known.
//
// The file is parsed once, by the parser of compose-go, with aliases and merge keys expanded; what was checked is
// handed on as values, so no second reading can see something else.
package compose
