package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
)

// stallAfter is how long an image that is being pulled may bring nothing before that is a problem.
const stallAfter = 2 * time.Minute

// progress is how far a pull is, for those who ask.
type progress struct {
	clock func() time.Time

	mu   sync.Mutex
	now  *status.Loading
	each map[string]loadingImage

	loaded uint64 // bytes, since the agent started
}

// loadingImage is how far one image is.
type loadingImage struct {
	done, total int64     // bytes; total 0: not known yet
	at          time.Time // when the last of them came
	ended       bool      // it is not being pulled now
}

func (p *progress) begin(generation uint64, images int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = &status.Loading{Generation: generation, Images: images}, map[string]loadingImage{}
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = nil, nil
}

// began notes an attempt at an image.
func (p *progress) began(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each != nil {
		x := p.each[name]
		x.at, x.ended = p.clock(), false
		p.each[name] = x
	}
}

func (p *progress) image(name string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each != nil {
		p.loaded += uint64(max(0, done-p.each[name].done))
		p.each[name] = loadingImage{done: done, total: total, at: p.clock()}
	}
}

// ended notes the end of an attempt at an image.
func (p *progress) ended(name string, well bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return
	}
	x := p.each[name]
	x.ended = true
	p.each[name] = x
	if well {
		p.now.Ready++
		p.now.NextTry = time.Time{}
	}
}

func (p *progress) waits(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.NextTry = t
	}
}

// stalls describes the images of which nothing has come for [stallAfter], and since when. next is when there may be another
// one; zero: never.
func (p *progress) stalls(now time.Time) (what string, since, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for name, x := range p.each {
		if x.ended || x.total > 0 && x.done >= x.total { // what is here is being unpacked
			continue
		}
		if due := x.at.Add(stallAfter); now.Before(due) {
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

// sum is how many bytes came since the agent started.
func (p *progress) sum() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded
}

func (p *progress) status() *status.Loading {
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
