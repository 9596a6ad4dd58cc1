// Package compose turns the compose.yaml of a Compose Archive into the workload that the agent runs.
//
// Start at [Load]; publishers call [Check] on what artifacts/composefile has packed. The package is pure: it reads the archive
// it is given and nothing else.
//
// # Refuse, never drop
//
// A service that does not get what it asks for fails on a device, at night. So every key of the file is compared with the
// list of keys that are honoured (support.go), and every other key is refused with its path and position, all of them at
// once. Extensions (x-…) may mean nothing; only our own (x-longshore-…) must be known.
//
// Each value is read once, from the tree of artifacts/composefile and at its position, by compose-go's parser for it: short
// forms of volumes and ports, commands, sizes, durations, variables and env files. compose-go's types.Project is not used: it
// lacks what a device must refuse (entries that others replace, options and keys that it does not know, the entry that a
// port of a range came from), its loader stops at the first fault and knows no positions, and it would add the JSON schema of
// Compose and its validator to the agent. A test compares the values of all projects of the corpus with those of types.Project.
package compose
