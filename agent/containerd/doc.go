// Package containerd runs workloads on containerd: it is the agent's Runtime.
//
// Start at [New]; [Runtime] has one method for each step that a plan can contain. All of them may be repeated after a kill
// at any point: existing objects are found by their labels, not by a file of our own, and completed or replaced.
// It changes only objects with the label of this device. TestKilledAnywhereConverges tests this, and runtimetest's suite
// the contract of every runtime.
//
// The packages below it: tasks (tasks and processes, also after hangs and kills), records (labels, and the owner of
// a container), claim (one agent per device), probe; runspec (the OCI specification) on confinement, guard, devices and features (permissions
// of a container, abilities of this machine); volumes (mounts of containers); images (pulls, repair, collection); logs (output of
// containers); usage; and shared ones: cgroup, users, locks, owned (labels), failure (errors), deadline, paths
// and process.
//
// # Why
//
//   - One shim a project (the runc shim's grouping annotation) saves about 5 MB and 10 ms a container; a service can opt out.
//   - Output goes to a file that the shim opens for appending, so a container can write while no process of ours runs.
//     Files are rotated without a lost line where the filesystem can cut a range from their front, else by copy and truncate.
//   - Network namespaces belong to [Networks]; a container only joins one by its path, so a restart does not change networks.
//   - no_new_privs is off unless a service sets it: Compose files are written against engines where set-uid
//     programs and file capabilities work.
package containerd
