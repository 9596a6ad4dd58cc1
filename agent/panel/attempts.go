package panel

import (
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// How often somebody may be wrong. At 30 wrong PINs an hour half of all PINs of six digits take two years.
const (
	freeTries   = 5 // of an address before it is locked
	firstLock   = time.Minute
	longestLock = time.Hour
	forgotten   = 24 * time.Hour // without a wrong PIN: an address is new again
	triesOfAll  = 30             // of all addresses but this machine's own, in allWindow
	allWindow   = time.Hour
)

// attempts are the logins that failed. Few addresses are in it at a time: those of all together are limited, too.
type attempts struct {
	now func() time.Time

	mu  sync.Mutex
	by  map[netip.Prefix]tries
	all []time.Time // within allWindow, the oldest first
}

type tries struct {
	failed int
	until  time.Time // when the address is no longer locked
	last   time.Time
}

// locked is until when nobody can log in from an address; zero: somebody can.
func (a *attempts) locked(from netip.Prefix) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if x := a.by[from]; now.Before(x.until) {
		return x.until
	}
	a.all = slices.DeleteFunc(a.all, func(t time.Time) bool { return !now.Before(t.Add(allWindow)) })
	if len(a.all) >= triesOfAll && !from.Addr().IsLoopback() { // strangers do not lock the machine's own panel
		return a.all[0].Add(allWindow)
	}
	return time.Time{}
}

func (a *attempts) failed(from netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for k, x := range a.by {
		if now.Sub(x.last) > forgotten {
			delete(a.by, k)
		}
	}
	x := a.by[from]
	x.failed, x.last = x.failed+1, now
	if over := x.failed - freeTries; over >= 0 {
		x.until = now.Add(min(firstLock<<min(over, 10), longestLock))
	}
	a.by[from] = x
	if !from.Addr().IsLoopback() {
		a.all = append(a.all, now)
	}
}

func (a *attempts) passed(from netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.by, from)
}

// origin is where a request comes from, as far as it counts: one machine may have every address of an IPv6 network.
func origin(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr, bits := at.Addr().Unmap().WithZone(""), 64
	if addr.Is4() || addr.IsLoopback() {
		bits = addr.BitLen()
	}
	return netip.PrefixFrom(addr, bits).Masked()
}
