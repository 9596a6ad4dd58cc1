package control

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Limits of a request. All of them are far above what our own client sends.
const (
	maxQuery   = 16 << 10
	maxName    = 512
	maxTail    = 1_000_000
	maxTargets = 256
)

// query reads the parameters of a request strictly: each one is read by its name, what is left over is an error.
type query struct {
	v   url.Values
	err error
}

func newQuery(raw string) *query {
	if len(raw) > maxQuery {
		return &query{err: fmt.Errorf("query of %d bytes: %w", len(raw), fault.ErrTooLarge)}
	}
	v, err := url.ParseQuery(raw)
	if err != nil {
		return &query{err: fmt.Errorf("query: %w: %w", fault.ErrInvalid, err)}
	}
	return &query{v: v}
}

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("query: "+format+": %w", append(args, fault.ErrInvalid)...)
	}
}

// text is a parameter that is there once at most; "" when it is not.
func (q *query) text(name string) string {
	vs, ok := q.v[name]
	delete(q.v, name)
	if !ok {
		return ""
	}
	if len(vs) != 1 || len(vs[0]) > maxName {
		q.fail("%s must be there once and be short", name)
		return ""
	}
	return vs[0]
}

func (q *query) targets() []string {
	vs := q.v["target"]
	delete(q.v, "target")
	if len(vs) > maxTargets {
		q.fail("%d targets", len(vs))
		return nil
	}
	for _, v := range vs {
		if v == "" || len(v) > maxName {
			q.fail("a target must be neither empty nor long")
		}
	}
	return vs
}

// read reads a parameter; the zero value: it is not there. want says what it must be.
func read[T any](q *query, name, want string, parse func(string) (T, error)) (v T) {
	if s := q.text(name); s != "" {
		var err error
		if v, err = parse(s); err != nil {
			q.fail("%s=%q%s", name, s, want)
		}
	}
	return v
}

func (q *query) flag(name string) bool { return read(q, name, "", strconv.ParseBool) }

func (q *query) number(name string, least, most int) int {
	return read(q, name, fmt.Sprintf(": a number from %d to %d", least, most), func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if n < least || n > most {
			err = strconv.ErrRange
		}
		return n, err
	})
}

func (q *query) time(name string) time.Time {
	return read(q, name, ": a time in RFC 3339", func(s string) (time.Time, error) { return time.Parse(time.RFC3339Nano, s) })
}

// end sends what was wrong.
func (q *query) end() error {
	for name := range q.v {
		q.fail("%.64q is not known", name)
	}
	return q.err
}

func logRequest(raw string) (status.LogRequest, error) {
	q := newQuery(raw)
	r := status.LogRequest{Targets: q.targets(), Prefix: q.flag("prefix"), LogOptions: workload.LogOptions{
		Follow: q.flag("follow"), Tail: q.number("tail", workload.NoTail, maxTail), Since: q.time("since"), Until: q.time("until"), Stamps: q.flag("stamps"),
	}}
	return r, q.end()
}

func logQuery(r status.LogRequest) string {
	q := url.Values{"target": r.Targets}
	set(q, "tail", strconv.Itoa(r.Tail), r.Tail != 0)
	set(q, "follow", "true", r.Follow)
	set(q, "prefix", "true", r.Prefix)
	set(q, "stamps", "true", r.Stamps)
	set(q, "since", stamp(r.Since), !r.Since.IsZero())
	set(q, "until", stamp(r.Until), !r.Until.IsZero())
	return q.Encode()
}

func set(q url.Values, name, value string, there bool) {
	if there {
		q.Set(name, value)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
