// Package spire has a manager and a device whose identities are given by a real SPIRE: its server and its agent, built as the other
// programs of testenv are. TestWorkloadAPI is all that is there.
package spire
