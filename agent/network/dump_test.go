package network

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	broken := errors.New("no such device")
	for _, tt := range []struct {
		name   string
		errs   []error // of one question after the other; the last one's goes on forever
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
			list, err := completeList(func() ([]int, error) {
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

// Others on the host give and take addresses all the time, as another container engine does.
func TestAddressesOfOthersComeAndGo(t *testing.T) {
	w := newWorld(t)
	p := proj("line", svc("web", []string{"front", "back"}), svc("client", []string{"back"}))
	h, f, err := openNamespace(w.host)
	w.must(err)
	defer f.Close()
	defer h.Close()
	l, err := h.LinkByName("uplink")
	w.must(err)
	one := func(i int) *netlink.Addr {
		a, err := netlink.ParseAddr(fmt.Sprintf("10.%d.%d.1/32", 100+i/256, i%256))
		w.must(err)
		return a
	}
	for i := range 1000 { // more than the kernel tells in one piece
		w.must(h.AddrAdd(l, one(i)))
	}
	mine := one(1000)
	stop, others := make(chan struct{}), sync.WaitGroup{}
	others.Go(func() {
		for {
			if err := errors.Join(h.AddrAdd(l, mine), h.AddrDel(l, mine)); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); others.Wait() })
	defer end()
	for range 5 {
		w.must(w.m.Restore(w.ctx()))
		w.prepare(p)
		w.attach(p)
		w.must(w.m.Teardown(w.ctx(), "line"))
	}
	end()
	w.clean()
}
