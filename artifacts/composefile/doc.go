// Package composefile reads Compose files as trees of values with their positions, makes one file of a project that is
// written in several, and packs it with the files that it names.
//
// [Parse] reads one file; [Pack] is for those who publish. The package knows the form of a Compose file and no meaning of
// its keys: what a device does with them is in agent/compose, which checks what was packed. It is pure: it reads the file
// system it is given and nothing else.
//
// # Why the loader of compose-go is not used
//
// Merging, unique entries of lists, variables and env files are compose-go's. Its loader is not used: it reads include,
// extends and env files from the disk of the machine instead of an [io/fs.FS], fills in the variables of an included file's
// env_file where a device needs them as defaults, stops at the first fault, and gives values without positions. It also
// brings a JSON schema validator of its own into the agent.
package composefile
