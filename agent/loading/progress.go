// Package loading pulls the images of a state, again and again until they are here, and shows how far that is.
package loading

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
)

// StallAfter is how long an image that is being pulled may bring nothing before that is a problem.
const StallAfter = 2 * time.Minute

// Progress is how far a pull is, for those who ask.
type Progress struct {
	Now func() time.Time

	mu   sync.Mutex
	now  *status.Loading
	each map[string]image

	loaded uint64 // bytes, since the agent started
}

// image is how far one image is.
type image struct {
	done, total int64     // bytes; total 0: not known yet
	at          time.Time // when the last of them came
	ended       bool      // it is not being pulled now
}

// Begin notes that a state's images are pulled from now on.
func (p *Progress) Begin(generation uint64, images int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = &status.Loading{Generation: generation, Images: images}, map[string]image{}
}

// End notes that none is.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = nil, nil
}

// Began notes an attempt at an image.
func (p *Progress) Began(name string) {
	p.edit(name, func(x *image) { x.at, x.ended = p.Now(), false })
}

// Image notes how many bytes of an image are here; total 0: not known yet.
func (p *Progress) Image(name string, done, total int64) {
	p.edit(name, func(x *image) {
		p.loaded += uint64(max(0, done-x.done))
		*x = image{done: done, total: total, at: p.Now()}
	})
}

// Ended notes the end of an attempt at an image.
func (p *Progress) Ended(name string, well bool) {
	p.edit(name, func(x *image) {
		if x.ended = true; well {
			p.now.Ready++
			p.now.NextTry = time.Time{}
		}
	})
}

// edit changes what is known of an image while images are pulled.
func (p *Progress) edit(name string, f func(*image)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each != nil {
		x := p.each[name]
		f(&x)
		p.each[name] = x
	}
}

// Waits notes when the next attempt is.
func (p *Progress) Waits(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.NextTry = t
	}
}

// Stalls describes the images of which nothing has come for [StallAfter], and since when. next is when there may be another
// one; zero: never.
func (p *Progress) Stalls(now time.Time) (what string, since, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for name, x := range p.each {
		if x.ended || x.total > 0 && x.done >= x.total { // what is here is being unpacked
			continue
		}
		if due := x.at.Add(StallAfter); now.Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		all = append(all, fmt.Sprintf("%s (%d of %d bytes are here)", name, x.done, x.total))
		if since.IsZero() || x.at.Before(since) {
			since = x.at
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", "), since, next
}

// Sum is how many bytes came since the agent started.
func (p *Progress) Sum() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded
}

// Status is how far all images are; nil: none is pulled.
func (p *Progress) Status() *status.Loading {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return nil
	}
	out := *p.now
	for _, x := range p.each {
		out.Done += x.done
		out.Total += max(x.done, x.total)
	}
	return &out
}
