// Package rollout publishes a fleet in waves: to a few devices first, and to the next ones when these report that they are
// well.
//
// [Begin] begins a rollout or takes up the one that is under way, [Run.Go] goes on with it until it ends, [Continue], [Halt]
// and [Undo] are for people. What has been done lies in the registry, in the [Store], so that any machine can go on; what
// devices report comes from an [Endpoint]. Which device is in which wave is [fleet.Plan.Waves].
package rollout
