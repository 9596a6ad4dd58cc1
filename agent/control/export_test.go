package control

import (
	"net/http"
	"sync"
)

// Handler answers control requests without a socket.
func Handler(d Device) http.Handler { return handler(d, new(sync.WaitGroup)) }
