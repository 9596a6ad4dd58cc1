package testenv

import "testing"

// A port that was given is not given again, though its program does not listen yet.
func TestFreePortGivesEachOnce(t *testing.T) {
	t.Parallel()
	ports := make(chan uint16)
	const callers, each = 4, 250
	for range callers {
		go func() {
			for range each {
				port, err := FreePort()
				if err != nil {
					t.Error(err)
				}
				ports <- port
			}
		}()
	}
	given := map[uint16]bool{}
	for range callers * each {
		port := <-ports
		if given[port] {
			t.Errorf("port %d was given twice", port)
		}
		given[port] = true
	}
}
