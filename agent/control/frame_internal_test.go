package control

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	long := bytes.Repeat([]byte{7}, 3*maxFrame+1)
	if n, err := (frameWriter{&b, frameStdout}).Write(long); n != len(long) || err != nil {
		t.Fatal(n, err)
	}
	if err := writeFrame(&b, frameStdinEnd, nil); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, maxFrame)
	var got []byte
	for {
		kind, content, err := readFrame(&b, buf)
		if err != nil {
			t.Fatal(err)
		}
		if kind == frameStdinEnd {
			break
		}
		got = append(got, content...)
	}
	if !bytes.Equal(got, long) {
		t.Errorf("%d bytes came, want %d", len(got), len(long))
	}
	if _, _, err := readFrame(&b, buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	for name, raw := range map[string][]byte{
		"unknown kind": {99, 0, 0, 0, 1, 0}, "kind 0": {0, 0, 0, 0, 0}, "too long": {1, 0, 0, 0x80, 1}, "huge": {1, 0xff, 0xff, 0xff, 0xff},
		"empty input": {1, 0, 0, 0, 0}, "long signal": {4, 0, 0, 0, 2, 1, 1}, "short size": {3, 0, 0, 0, 3, 1, 1, 1},
	} {
		if _, _, err := readFrame(bytes.NewReader(raw), buf); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	if _, _, err := readFrame(bytes.NewReader([]byte{1, 0, 0, 0, 9, 1}), buf); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
}

// What a caller may send: it is either taken, in the given bounds, or ends the connection.
func FuzzSession(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 'x', 3, 0, 0, 0, 4, 0, 80, 0, 24, 4, 0, 0, 0, 1, 15, 2, 0, 0, 0, 0})
	f.Add([]byte{5, 0, 0, 0, 1, 'x'})
	f.Add([]byte{1, 0xff, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newSession(t.Context(), io.Discard)
		s.receive(bytes.NewReader(in))
		if len(s.queue) > window || len(s.queue) > len(in) {
			t.Errorf("%d bytes wait after %d came", len(s.queue), len(in))
		}
	})
}
