package control

import (
	"bytes"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore-dev/longshore/agent"
)

// ordered has a session read in and returns what came of it.
func ordered(in []byte) (sizes []agent.Size, signals []syscall.Signal, ended int) {
	s := session{resize: make(chan agent.Size, 1), signals: make(chan syscall.Signal, 16), endInput: func() { ended++ }}
	s.receive(bytes.NewReader(in))
	close(s.resize)
	close(s.signals)
	for z := range s.resize {
		sizes = append(sizes, z)
	}
	for n := range s.signals {
		signals = append(signals, n)
	}
	return sizes, signals, ended
}

func TestOrders(t *testing.T) {
	sizes, signals, ended := ordered([]byte(`{"width":80,"height":24}
{"signal":15}
{"width":132,"height":50}
{"inputEnd":true}
{"signal":10}
`))
	if !slices.Equal(sizes, []agent.Size{{Width: 132, Height: 50}}) || !slices.Equal(signals, []syscall.Signal{15, 10}) || ended != 1 {
		t.Errorf("sizes %v, signals %v, %d ends of input", sizes, signals, ended)
	}
	for _, bad := range []string{
		"", "x", "[]", `{"signal":256}`, `{"signal":-1}`, `{"width":65536,"height":1}`, `{"other":1}`, `{"signal":1}{"signal":1}`,
		strings.Repeat(" ", maxOrder) + `{"signal":1}`,
	} {
		if sizes, signals, ended := ordered([]byte(bad + "\n" + `{"width":1,"height":1,"signal":9,"inputEnd":true}`)); len(sizes)+len(signals)+ended > 0 {
			t.Errorf("after %.40q: sizes %v, signals %v, %d ends of input", bad, sizes, signals, ended)
		}
	}
}

// What a caller may send: it is either taken, in the given bounds, or ends the connection.
func FuzzOrders(f *testing.F) {
	f.Add([]byte(`{"width":80,"height":24}` + "\n" + `{"signal":15}` + "\n" + `{"inputEnd":true}` + "\n"))
	f.Add([]byte(`{"signal":256}` + "\n"))
	f.Add(bytes.Repeat([]byte(`{"signal":1}`+"\n"), 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		sizes, signals, ended := ordered(in)
		lines := bytes.Count(in, []byte("\n")) + 1
		if len(sizes) > 1 || len(signals) > min(16, lines) || ended > lines || slices.Contains(signals, 0) || slices.ContainsFunc(sizes, func(z agent.Size) bool { return z.Width == 0 || z.Height == 0 }) {
			t.Errorf("sizes %v, signals %v, %d ends of input of %d lines", sizes, signals, ended, lines)
		}
	})
}
