// Package composefile reads Compose files as trees of values with their positions, flattens a project of several files into one,
// and packs it with the files that it names.
//
// [Parse] reads one file; [Pack] is for publishers. The package knows the structure of a Compose file and not the meaning of its
// keys: agent/compose translates them for a device, and checks what was packed. The package is pure: it reads only the file
// system that it is given.
//
// # Why the loader of compose-go is not used
//
// Merging, unique entries of lists, variables and env files are compose-go's. Its loader is not used: it reads include,
// extends and env files from the disk of the machine instead of an [io/fs.FS], fills in the variables of an included file's
// env_file where a device needs them as defaults, stops at the first fault, and gives values without positions. It also
// brings a JSON schema validator of its own into the agent.
package composefile
