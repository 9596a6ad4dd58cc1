package control

import (
	"net/http"
	"os"
	"sync"
)

// Handler answers control requests without a socket.
func Handler(d Device) http.Handler { return handler(d, new(sync.WaitGroup)) }

// OnSync has f called when a file of the directory is made durable.
func (x *Directory) OnSync(f func(name string)) {
	x.sync = func(file *os.File) error {
		f(file.Name())
		return file.Sync()
	}
}

// Send and Receive pass files on, as an agent and a client do.
var (
	Send    = send
	Receive = receive
)
