package containerd

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// elsewhere runs do on a thread of its own, which may enter other namespaces: it never runs anything else and ends with do.
// It is never the process's first thread: that one cannot end, would keep the namespaces, and everybody takes its
// namespaces for the process's.
func elsewhere(do func()) {
	done := make(chan struct{})
	var try func()
	try = func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			defer close(done)
			do()
			return // still locked: the thread ends
		}
		go try() // on another thread, for this one is held
		<-done
		runtime.UnlockOSThread()
	}
	go try()
	<-done
}
