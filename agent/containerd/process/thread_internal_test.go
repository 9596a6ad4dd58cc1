package process

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The first thread never enters anything: it would stay there for the process's whole life.
func TestElsewhereIsNeverTheFirstThread(t *testing.T) {
	for range 200 {
		DetachedThread(func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("it runs on the first thread")
			}
		})
	}
}
