// Package containerd realises workloads on containerd: it is the agent's Runtime.
//
// Start at [New]; [Runtime] has one method for each step that a plan can contain. All of them may be repeated after a kill
// at any point: what is there is found again by its labels and completed or replaced, never by notes of our own.
// It touches nothing that does not carry the label of this device. TestKilledAnywhereConverges holds that promise, and
// runtimetest's suite the ones that every runtime makes.
//
// Below it, none with more than it needs: tasks (tasks and processes, past what hangs and what kills leave), records (labels, and whose
// a container is), claim (one agent a device), probe; runspec (the OCI specification) on confinement, guard, devices and features (what
// a container may do, what this machine can do); volumes (what containers mount); images (pulls, repair, collection); logs (what
// containers write); usage; and the floor that they share: cgroup, users, locks, owned (labels), failure (errors), deadline, paths
// and process.
//
// # Why
//
//   - One shim a project (the runc shim's grouping annotation) saves about 5 MB and 10 ms a container; a service can opt out.
//   - Output goes to a file that the shim opens for appending, so no process of ours has to live for a container to write.
//     Files are rotated without a lost line where the filesystem can cut a range from their front, else by copy and truncate.
//   - Network namespaces belong to [Networks]; a container only joins one by its path, so a restart costs no networking.
//   - no_new_privs is off unless [Options.NoNewPrivileges] asks: Compose files are written against engines where set-uid
//     programs and file capabilities work.
package containerd
