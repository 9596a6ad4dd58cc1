// Package tig stands in for the one that nerdctl's helpers of tests name; see the go.mod above.
package tig

// T is as much of a test as those helpers use.
type T interface {
	Helper()
	FailNow()
	Fail()
	Log(args ...any)
	Name() string
	TempDir() string
}
