package workload

import "time"

// Order is which of two revisions comes first.
type Order string

// Orders of an update. The zero value is StopFirst.
const (
	StopFirst  Order = "stop-first"
	StartFirst Order = "start-first"
)

// FailureAction is what follows an update that failed.
type FailureAction string

// Actions. The zero value is ActRollback.
const (
	ActRollback FailureAction = "rollback" // back to the last good revision
	ActPause    FailureAction = "pause"    // stay as it is, failed, until a new state comes
	ActContinue FailureAction = "continue" // go on with the other replicas
)

// Update is how the replicas of a service are replaced: Compose deploy.update_config and rollback_config.
type Update struct {
	Order           Order         `json:",omitzero"`
	Parallelism     int           `json:",omitzero"` // replicas at a time; 0: all
	Delay           time.Duration `json:",omitzero"` // between two batches
	Monitor         time.Duration `json:",omitzero"` // a new container that fails this soon after it was up has failed the update; 0: 5 s
	FailureAction   FailureAction `json:",omitzero"`
	MaxFailureRatio float64       `json:",omitzero"` // share of replicas that may fail
}
