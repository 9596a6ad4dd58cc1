package trace

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	keptEnds = 64     // states whose change has ended that are remembered
	maxOpen  = 10_000 // deployments of a state that are applied at a time
	maxText  = 256    // bytes of an attribute
)

const (
	spanChange   = "change"
	spanCheck    = "check"
	spanVerify   = "verify"
	spanApply    = "apply" // of one deployment
	spanStart    = "start" // of one container
	spanCommit   = "commit"
	spanRollback = "rollback"
)

// phases have spans of these names; those that are not here have none, because other spans say more.
var phases = map[store.Phase]string{
	store.PhaseDownloading: "download", store.PhaseStaged: "staged", store.PhaseProbation: "probation", store.PhaseRollingBack: spanRollback,
	store.PhaseAwaitingApproval: "await approval", store.PhaseAwaitingLock: "await lock", store.PhaseAwaitingWindow: "await window",
}

// span is one piece of a change that has ended.
type span struct {
	trace      [16]byte
	id, parent [8]byte // parent zero: it is the root
	name       string
	begin, end time.Time
	attributes []attribute
	failure    string // code; "": it did not fail
}

// attribute has a text or, without one, a number.
type attribute struct {
	key, text string
	number    uint64
}

// change is the one that the device is at.
type change struct {
	trace      [16]byte
	root       [8]byte
	digest     digest.Digest
	generation uint64
	begun      time.Time
	phase      store.Phase // "": none was seen yet
	since      time.Time   // of phase
	why        string      // code of phase
	spans      int         // to number them
	open       map[string]*applying
}

// applying is a deployment that is being changed.
type applying struct {
	id    [8]byte
	begun time.Time
}

// changes makes spans from events.
type changes struct {
	device, epoch string
	ratio         float64
	put           func(span)
	now           *change         // nil: none
	ended         []digest.Digest // of what has ended, the newest last
}

func newChanges(o Options, put func(span)) *changes {
	x := &changes{device: o.Device, epoch: o.Epoch, ratio: o.Collector.Ratio, put: put}
	p := o.Before
	if p == nil {
		return x
	}
	for _, h := range p.History {
		x.end(h.Digest)
	}
	if p.Phase.Found() || p.Phase.Ended() {
		return x
	}
	begun := o.Begun
	if begun.IsZero() || begun.After(p.Since) {
		begun = p.Since
	}
	x.begin(p.Digest, p.Generation, begun)
	x.now.phase, x.now.since, x.now.why = p.Phase, p.Since, p.Code
	for _, s := range o.Statuses {
		if s.State == margo.StateInstalling || s.State == margo.StateRemoving {
			x.now.opens(s.Name, s.Since)
		}
	}
	return x
}

// begin begins the change to a state. Its identifiers are the same after a restart; those of another change to the same state, as after
// a rollback by hand, differ.
func (x *changes) begin(d digest.Digest, generation uint64, at time.Time) {
	c := &change{digest: d, generation: generation, begun: at, open: map[string]*applying{}}
	about := []string{x.device, x.epoch, d.String()}
	if slices.Contains(x.ended, d) {
		about = append(about, strconv.FormatInt(at.UnixNano(), 10))
	}
	sum := sha256.Sum256([]byte(strings.Join(about, "\n")))
	copy(c.trace[:], sum[:16])
	copy(c.root[:], sum[16:24])
	x.now = c
}

// end remembers that a change to a state has ended.
func (x *changes) end(d digest.Digest) {
	x.ended = slices.DeleteFunc(x.ended, func(o digest.Digest) bool { return o == d })
	x.ended = append(x.ended, d)
	x.ended = x.ended[max(0, len(x.ended)-keptEnds):]
}

// sampled decides by the identifier of a trace, so that all of it is sent or nothing.
func (x *changes) sampled(trace [16]byte) bool {
	return x.ratio >= 1 || float64(binary.BigEndian.Uint64(trace[8:])>>1) < x.ratio*(1<<63)
}

// name is the identifier of a span of the change.
func (c *change) name(span, of string, begin time.Time) (id [8]byte) {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(c.trace[:]), span, of, strconv.FormatInt(begin.UnixNano(), 10)}, "\n")))
	copy(id[:], sum[:])
	return id
}

// opens begins a deployment. Containers that start are below it, also after the agent was restarted.
func (c *change) opens(deployment string, since time.Time) {
	if c.open[deployment] == nil && len(c.open) < maxOpen {
		c.open[deployment] = &applying{c.name(spanApply, deployment, since), since}
	}
}

// tell gives a span of the present change away. A zero id is replaced, a zero parent is the change. The clock may have gone back.
func (x *changes) tell(s span) [8]byte {
	c := x.now
	s.trace = c.trace
	if s.id == ([8]byte{}) {
		c.spans++
		s.id = c.name(s.name, strconv.Itoa(c.spans), s.begin)
	}
	if s.parent == ([8]byte{}) && s.id != c.root {
		s.parent = c.root
	}
	if s.end.Before(s.begin) {
		s.end = s.begin
	}
	if x.sampled(s.trace) {
		x.put(s)
	}
	return s.id
}

// take takes in what happened.
func (x *changes) take(e status.Event) {
	switch e.Kind {
	case status.EventAccepted:
		x.leaveFor(e.Digest, e.Time)
		x.begin(e.Digest, e.Generation, began(e))
		x.check(e)
	case status.EventRefused:
		x.refused(e)
	case status.EventPhase:
		x.moved(e)
	case status.EventDeployment:
		x.deployed(e)
	case status.EventStarted, status.EventRestarted:
		x.started(e)
	}
}

// began is when what ended with an event had begun.
func began(e status.Event) time.Time {
	if e.Since.IsZero() {
		return e.Time
	}
	return e.Since
}

// leaveFor ends the present change, which gives way to one to another state.
func (x *changes) leaveFor(d digest.Digest, at time.Time) {
	if x.now != nil && x.now.digest != d {
		x.finish(string(store.PhaseSuperseded), "", at)
	}
}

// check tells the check that brought the present change.
func (x *changes) check(e status.Event) {
	parent := x.tell(span{name: spanCheck, begin: began(e), end: e.Time, failure: string(e.Code)})
	if !e.Verifying.IsZero() {
		x.tell(span{name: spanVerify, parent: parent, begin: e.Verifying, end: e.Time, failure: string(e.Code)})
	}
}

// refused tells a state that failed a check: a change that never became one. The present one goes on.
func (x *changes) refused(e status.Event) {
	before := x.now
	x.begin(e.Digest, e.Generation, began(e))
	x.check(e)
	x.finish("refused", string(e.Code), e.Time)
	x.now = before
}

// moved takes in the next phase of the change to a state.
func (x *changes) moved(e status.Event) {
	p := store.Phase(e.Message)
	there := x.now != nil && x.now.digest == e.Digest
	if p.Found() || p.Ended() && !there { // events of checks say more; and the phase before a check returns after it
		return
	}
	x.leaveFor(e.Digest, e.Time)
	if !there {
		x.begin(e.Digest, e.Generation, e.Time)
	}
	c := x.now
	x.leave(e.Time)
	rolled := c.phase == store.PhaseRollingBack
	c.phase, c.since, c.why = p, e.Time, string(e.Code)
	switch {
	case !p.Ended():
		return
	case p == store.PhaseCommitted:
		x.tell(span{name: spanCommit, begin: e.Time, end: e.Time})
		x.finish(string(p), "", e.Time)
		return
	case p == store.PhaseRolledBack && !rolled:
		x.tell(span{name: spanRollback, begin: e.Time, end: e.Time, failure: string(e.Code)})
	}
	x.finish(string(p), string(e.Code), e.Time)
}

// leave tells the phase that ends.
func (x *changes) leave(at time.Time) {
	c := x.now
	name := phases[c.phase]
	if name == "" {
		return
	}
	s := span{name: name, begin: c.since, end: at}
	if c.why != "" {
		s.attributes = []attribute{{key: "longshore.code", text: c.why}}
	}
	x.tell(s)
}

// finish ends the present change.
func (x *changes) finish(outcome, code string, at time.Time) {
	c := x.now
	for _, name := range slices.Sorted(maps.Keys(c.open)) {
		x.closes(name, at, code)
	}
	s := span{id: c.root, name: spanChange, begin: c.begun, end: at, failure: code, attributes: []attribute{
		{key: "longshore.state.digest", text: c.digest.String()}, {key: "longshore.outcome", text: outcome},
	}}
	if c.generation > 0 {
		s.attributes = append(s.attributes, attribute{key: "longshore.generation", number: c.generation})
	}
	if code != "" {
		s.attributes = append(s.attributes, attribute{key: "longshore.code", text: code})
	}
	x.tell(s)
	x.end(c.digest)
	x.now = nil
}

// deployed takes in the next state of a deployment; its message is the state, and may go on with what is wrong.
func (x *changes) deployed(e status.Event) {
	if x.now == nil {
		return
	}
	word, _, _ := strings.Cut(e.Message, ":")
	_, open := x.now.open[e.Deployment]
	switch state := margo.State(word); {
	case state == margo.StateInstalling || state == margo.StateRemoving:
		x.now.opens(e.Deployment, began(e))
	case open:
		x.closes(e.Deployment, e.Time, string(e.Code))
	}
}

// closes tells a deployment that was applied.
func (x *changes) closes(name string, at time.Time, code string) {
	a := x.now.open[name]
	delete(x.now.open, name)
	x.tell(span{id: a.id, name: spanApply, begin: a.begun, end: at, failure: code, attributes: []attribute{{key: "longshore.deployment", text: name}}})
}

// started tells the start of a container, as a part of its deployment.
func (x *changes) started(e status.Event) {
	if x.now == nil {
		return
	}
	s := span{name: spanStart, begin: began(e), end: e.Time, attributes: []attribute{{key: "longshore.replica", number: uint64(max(0, e.Replica))}}}
	for _, kv := range [][2]string{
		{"longshore.deployment", e.Deployment}, {"longshore.component", e.Component}, {"longshore.service", e.Service}, {"container.id", e.Container},
	} {
		if kv[1] != "" {
			s.attributes = append(s.attributes, attribute{key: kv[0], text: kv[1]})
		}
	}
	if a := x.now.open[e.Deployment]; a != nil {
		s.parent = a.id
	}
	x.tell(s)
}
