// Package enroll is the manager's side of enrollment: it accepts keys of devices and issues their credentials. The protocol is in
// identity/enroll, decisions are rows of fleet/store; operators make them from the command line, also while the manager runs.
//
// [Service] serves the requests of devices, and decides which certificates of devices are accepted: [Service.Look]. A device without an
// approved key receives only that answer; see TestAttacks.
//
// # Order
//
// A credential is recorded before it is created: a crash in between leaves a record without a credential, never a
// credential without a record. Its withdrawal is retried until it succeeds, also after a restart.
package enroll
