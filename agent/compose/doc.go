// Package compose turns the compose.yaml of a Compose Archive into the workload that the agent runs.
//
// Start at [Load]; publishers call [Check] on a project that artifacts/composefile has packed. The package is pure: it reads only
// the archive.
//
// # Reject, never drop
//
// A service without a setting that it needs fails later, on a device. So every key of the file is compared with the
// list of supported keys (support.go), and all other keys are rejected together, with path and position. Foreign
// extensions (x-…) are ignored; our own (x-longshore-…) must be known.
//
// Each value is read once, from the tree of artifacts/composefile and at its position, by compose-go's parser for it: short
// forms of volumes and ports, commands, sizes, durations, variables and env files. compose-go's types.Project is not used: it
// lacks values that a device must reject (entries that others replace, unknown options and keys, the entry that a
// port of a range came from), its loader stops at the first fault and has no positions, and it would add the JSON schema of
// Compose and its validator to the agent. A test compares the values of all projects of the corpus with those of types.Project.
package compose
