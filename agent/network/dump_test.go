package network

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	broken := errors.New("no such device")
	for _, tt := range []struct {
		name   string
		errs   []error // of one question after the other; the last one's goes on for ever
		want   error
		asked  int
		listed int
	}{
		{"at once", []error{nil}, nil, 1, 1},
		{"changing", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, nil, 3, 3},
		{"broken", []error{netlink.ErrDumpInterrupted, broken}, broken, 2, 2},
		{"never quiet", []error{netlink.ErrDumpInterrupted}, netlink.ErrDumpInterrupted, maxDumps, maxDumps},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := 0
			list, err := whole(func() ([]int, error) {
				err := tt.errs[min(asked, len(tt.errs)-1)]
				asked++
				return make([]int, asked), err
			})
			if !errors.Is(err, tt.want) || asked != tt.asked || len(list) != tt.listed {
				t.Errorf("%d entries, %v after %d questions, want %d, %v after %d", len(list), err, asked, tt.listed, tt.want, tt.asked)
			}
		})
	}
}
