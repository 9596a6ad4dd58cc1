package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Admitter is a [Projects] that can tell what would clash on this device, before anything is stopped.
type Admitter interface {
	// Admit holds all projects that the device is to run against each other and against the machine as it is now. What this
	// agent runs already is no clash: it will make room. For each project that cannot run the error has a [ClashError]
	// in its tree; an error without any says nothing about a project, and Admit is called again.
	Admit(ctx context.Context, projects []*workload.Project) error
}

// ClashError says why a project cannot run on this device now.
type ClashError struct {
	Project string
	Code    Code // "": CodeAdmission
	Err     error
}

func (e *ClashError) Error() string { return e.Err.Error() }
func (e *ClashError) Unwrap() error { return e.Err }

const (
	admitLimit = time.Minute // of one question
	admitEvery = time.Minute // until what was turned down is asked about again: the machine may have changed
	admitRetry = 5 * time.Second
)

// admission remembers what may be made. It is lost with the process: what has all its containers needs no admission.
type admission struct {
	passed map[digest.Digest]bool    // by deployment digest
	held   map[digest.Digest]trouble // by deployment digest
	busy   bool
	at     time.Time // when to ask again; zero: at once, if there is anything to ask
}

func newAdmission() admission {
	return admission{passed: map[digest.Digest]bool{}, held: map[digest.Digest]trouble{}}
}

// asked tells whether a deployment may be made; nil: every one may.
func (m *admission) asked(rt Runtime) func(*Deployment) bool {
	if _, ok := rt.(Admitter); !ok {
		return nil
	}
	return func(d *Deployment) bool { return m.passed[d.Digest] }
}

// due is when to ask again; zero: not by itself.
func (m *admission) due() time.Time {
	if m.busy {
		return time.Time{}
	}
	return m.at
}

func (m *admission) forget(keep map[digest.Digest]bool) {
	maps.DeleteFunc(m.passed, func(d digest.Digest, _ bool) bool { return !keep[d] })
	maps.DeleteFunc(m.held, func(d digest.Digest, _ trouble) bool { return !keep[d] })
	m.at = time.Time{}
}

// seekRoom asks about what is to be made, beside the loop. What is there completely was admitted once.
func (l *loop) seekRoom(now time.Time) {
	asker, ok := l.o.Runtime.(Admitter)
	if !ok || l.wanted == nil {
		return
	}
	m := &l.admission
	seen, open, news := index(l.seen), false, false
	var projects []*workload.Project
	owner := map[string]digest.Digest{}
	for i := range l.wanted.Deployments {
		d := &l.wanted.Deployments[i]
		_, bad := l.bad[d.Digest]
		if _, held := m.held[d.Digest]; !held && !m.passed[d.Digest] && complete(d, seen) {
			m.passed[d.Digest], news = true, true
		}
		open = open || !bad && !m.passed[d.Digest]
		if g := l.good[d.ID]; bad && g.d != nil {
			d = g.d
		}
		for j := range d.Components {
			projects = append(projects, d.Components[j].Project)
			owner[d.Components[j].Project.Name] = d.Digest
		}
	}
	if news {
		l.recompose()
	}
	if !open {
		m.at = time.Time{}
	}
	if !open || m.busy || now.Before(m.at) {
		return
	}
	m.busy = true
	of := l.wanted
	l.spawn(func() {
		ctx, cancel := context.WithTimeout(l.ctx, admitLimit)
		defer cancel()
		err := asker.Admit(ctx, projects)
		l.post(func(l *loop) { l.roomFound(of, owner, err) })
	})
}

// complete tells whether all containers of a deployment are there.
func complete(d *Deployment, seen map[string]workload.Observation) bool {
	for i := range d.Components {
		for _, c := range d.Components[i].Containers {
			if o, ok := seen[c.ID]; !ok || !is(o, c) {
				return false
			}
		}
	}
	return true
}

// roomFound takes in an answer.
func (l *loop) roomFound(of *Desired, owner map[string]digest.Digest, err error) {
	m, now := &l.admission, l.o.Now()
	m.busy, m.at, l.look = false, time.Time{}, true
	if l.wanted != of {
		return
	}
	found := clashes(err, nil)
	if err != nil && len(found) == 0 {
		m.at = now.Add(admitRetry)
		l.log.Warn("cannot find out whether there is room for a generation; what runs is kept", "err", err)
		return
	}
	held := map[digest.Digest]trouble{}
	for _, c := range found {
		d, ok := owner[c.Project]
		if _, again := held[d]; !ok || again || m.passed[d] {
			continue
		}
		t := trouble{code: c.Code, message: c.Error(), lasting: true, source: componentNamed(of, c.Project), since: now}
		if !slices.Contains(admissionCodes(), t.code) {
			t.code = CodeAdmission
		}
		if h := fault.Hint(c.Err); h != "" {
			t.message += " (" + h + ")"
		}
		if old, ok := m.held[d]; ok && old.message == t.message {
			t = old
		} else {
			l.log.Warn("a deployment is not applied: it would clash", "project", c.Project, "code", t.code, "err", c.Err)
		}
		held[d] = t
	}
	if len(held) > 0 {
		m.at = now.Add(admitEvery)
	}
	for _, d := range owner {
		if _, ok := held[d]; !ok {
			m.passed[d] = true
		}
	}
	m.held = held
	l.recompose()
}

// clashes finds every ClashError of a tree.
func clashes(err error, out []*ClashError) []*ClashError {
	switch x := err.(type) {
	case *ClashError:
		out = append(out, x)
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			out = clashes(e, out)
		}
	case interface{ Unwrap() error }:
		out = clashes(x.Unwrap(), out)
	}
	return out
}

// componentNamed is the component that a project is of.
func componentNamed(d *Desired, project string) string {
	for i := range d.Deployments {
		for _, c := range d.Deployments[i].Components {
			if c.Project.Name == project {
				return c.Name
			}
		}
	}
	return project
}
