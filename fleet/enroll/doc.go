// Package enroll is the manager's side of enrollment: which keys become devices, and what those get. The protocol is in
// identity/enroll, decisions are rows of fleet/store; operators make them from the command line, also while the manager runs.
//
// [Service] serves the requests of devices, and knows which certificates of devices count: [Service.Look]. A device whose key is not
// approved receives nothing but the answer that it is not; see TestAttacks.
//
// # Order
//
// What has to be withdrawn later is recorded before it is made: a crash in between leaves a record and no credential, never a
// credential that is not recorded. Withdrawing is tried until it succeeds, also after a restart.
package enroll
