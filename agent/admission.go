package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	admitLimit = time.Minute // of one question
	admitEvery = time.Minute // until what was turned down is asked about again: the machine may have changed
	admitRetry = 5 * time.Second
)

// admission remembers what may be made. It is lost with the process: what has all its containers needs no admission.
type admission struct {
	passed map[digest.Digest]bool         // by deployment digest
	held   map[digest.Digest]plan.Trouble // by deployment digest
	busy   bool
	at     time.Time // when to ask again; zero: at once, if there is anything to ask
}

// admits reports whether a deployment may be made.
func (m *admission) admits(d *plan.Deployment) bool { return m.passed[d.Digest] }

func (m *admission) forget(keep map[digest.Digest]bool) {
	maps.DeleteFunc(m.passed, func(d digest.Digest, _ bool) bool { return !keep[d] })
	maps.DeleteFunc(m.held, func(d digest.Digest, _ plan.Trouble) bool { return !keep[d] })
	m.at = time.Time{}
}

// startAdmission asks about what is to be made, beside the loop, and waits for a moment. True: the answer is here. What exists
// completely was admitted once.
func (l *loop) startAdmission(now time.Time) bool {
	if l.targetDesired == nil {
		return false
	}
	m := &l.admission
	seen, open, news := plan.ByID(l.sight.seen), false, false
	var projects []*workload.Project
	owned := map[digest.Digest]bool{}
	for d := range l.targetDesired.All() {
		_, bad := l.bad[d.Digest]
		if _, held := m.held[d.Digest]; !held && !m.passed[d.Digest] && plan.Complete(d, seen) {
			m.passed[d.Digest], news = true, true
		}
		_, waits := l.gate.waits[d.ID]
		open = open || !bad && !waits && !m.passed[d.Digest]
		if g := l.good[d.ID]; (bad || waits) && g.Deployment != nil {
			d = g.Deployment
		}
		owned[d.Digest] = true
		for c := range d.All() {
			projects = append(projects, c.Project)
		}
	}
	for id := range l.gate.waits {
		if g := l.good[id]; g.Deployment != nil && l.targetDesired.Deployment(id) == nil { // it is removed later
			for c := range g.Deployment.All() {
				projects = append(projects, c.Project)
			}
		}
	}
	if news {
		l.rebuild()
	}
	if !open {
		m.at = time.Time{}
	}
	if !open || m.busy || now.Before(m.at) {
		return false
	}
	m.busy = true
	of, err := l.targetDesired, error(nil)
	finish := func(l *loop) { l.finishAdmission(of, owned, err) }
	if !l.briefly(admitLimit, func(ctx context.Context) { err = l.o.Runtime.Admit(ctx, projects) }, finish) {
		return false
	}
	finish(l)
	return true
}

func (l *loop) finishAdmission(of *plan.Desired, owned map[digest.Digest]bool, err error) {
	m, now := &l.admission, l.o.Now()
	m.busy, m.at = false, time.Time{}
	if l.targetDesired != of {
		return
	}
	var found workload.Conflicts
	if err != nil && !errors.As(err, &found) {
		m.at = now.Add(admitRetry)
		l.log.Warn("cannot find out whether there is room for a generation; what runs is kept", "err", err)
		return
	}
	held := map[digest.Digest]plan.Trouble{}
	for d := range of.All() {
		cs := found.Of(d.ID)
		if len(cs) == 0 || m.passed[d.Digest] || !owned[d.Digest] {
			continue
		}
		t := plan.Trouble{Code: codes.Admission, Message: clashText(cs), Permanent: true, Source: cs[0].Component, Since: now}
		if errors.Is(cs[0], fault.ErrUnfit) {
			t.Code = codes.DeviceUnfit
		}
		if old, ok := m.held[d.Digest]; ok && old.Message == t.Message {
			t = old
		} else {
			l.log.Warn("a deployment is not applied: it would clash", "deployment", d.Name, "code", t.Code, "err", t.Message)
		}
		held[d.Digest] = t
	}
	if len(held) > 0 {
		m.at = now.Add(admitEvery)
	}
	for d := range owned {
		if _, ok := held[d]; !ok {
			m.passed[d] = true
		}
	}
	m.held = held
	l.rebuild()
}

// maxClashes bounds how many conflicts a message names.
const maxClashes = 5

// clashText is what a message says about clashes, with what can be done.
func clashText(cs workload.Conflicts) string {
	var out []string
	for i, c := range cs {
		if i == maxClashes {
			out = append(out, fmt.Sprintf("and %d more", len(cs)-i))
			break
		}
		text := c.Path + ": " + c.Reason.Error()
		if h := fault.Hint(c.Reason); h != "" {
			text += " (" + h + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}
