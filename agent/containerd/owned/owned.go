// Package owned names the labels by which the agent finds its objects in containerd.
package owned

import "strconv"

// Labels on every object of ours. An object without LabelDevice, or with another device's, is not ours; a container also has a record.
const (
	LabelPrefix     = "dev.longshore."
	LabelDevice     = LabelPrefix + "device"
	LabelDeployment = LabelPrefix + "deployment"
	LabelComponent  = LabelPrefix + "component"
	LabelProject    = LabelPrefix + "project"
	LabelService    = LabelPrefix + "service"
	LabelReplica    = LabelPrefix + "replica"
	LabelHash       = LabelPrefix + "hash"
	LabelGeneration = LabelPrefix + "generation"
	// LabelHook marks an init container; its value is the id of the container that it runs before. It is not a container of the project.
	LabelHook = LabelPrefix + "hook"

	// LabelRoot protects an object from containerd's garbage collection.
	LabelRoot = "containerd.io/gc.root"
)

// By is containerd's filter for objects of a device that have some labels, given as key, value pairs.
func By(device string, pairs ...string) string {
	f := "labels." + strconv.Quote(LabelDevice) + "==" + strconv.Quote(device)
	for i := 0; i+1 < len(pairs); i += 2 {
		f += ",labels." + strconv.Quote(pairs[i]) + "==" + strconv.Quote(pairs[i+1])
	}
	return f
}
