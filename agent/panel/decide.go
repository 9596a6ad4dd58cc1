package panel

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// postponements are the choices of how long; "until" is a time of one's own.
var postponements = []string{"1h", "8h", "24h"}

const untilLayout = "2006-01-02T15:04" // of an input of type datetime-local

// by names somebody in records: a user of the device may have the same name.
func (s *session) by() string { return s.person.name + " at the panel" }

func (p *page) changePage(w http.ResponseWriter, r *http.Request, id string, s *session) {
	all, err := p.Device.Changes(r.Context())
	if err != nil {
		p.unavailable(w, err)
		return
	}
	for _, c := range all {
		if c.ID.String() == r.PathValue("id") && c.Begun.IsZero() {
			p.show(w, http.StatusOK, content{Person: s.person.name, Flash: s.flash}, p.choices(c))
			return
		}
	}
	p.result(w, r, id, flash{Text: p.Messages.Text("result.superseded"), Bad: true})
}

func (p *page) decide(w http.ResponseWriter, r *http.Request, id string, s *session) {
	if !p.form(w, r) {
		return
	}
	d := agent.DecisionRequest{
		Deployment: r.PostFormValue("deployment"), ID: digest.Digest(r.PathValue("id")), Verdict: store.Verdict(r.PostFormValue("verdict")),
		By: s.by(), Via: via, Reason: reason(r),
	}
	if r.PostForm.Has("seen") {
		at, err := time.Parse(time.RFC3339Nano, r.PostFormValue("seen"))
		if err != nil { // no decision was shown
			at = time.Time{}
		}
		d.Seen = &at
	}
	if d.Verdict == store.Postponed {
		var ok bool
		if d.Until, ok = p.until(r); !ok {
			p.result(w, r, id, flash{Text: p.Messages.Text("result.time"), Bad: true})
			return
		}
	}
	if d.Verdict == store.Rejected && d.Reason == "" {
		p.result(w, r, id, flash{Text: p.Messages.Text("result.reason"), Bad: true})
		return
	}
	c, err := p.Device.Decide(r.Context(), d)
	if err != nil {
		p.failed(w, r, id, err)
		return
	}
	p.result(w, r, id, flash{Text: p.Messages.Text("result."+string(d.Verdict), "name", c.Deployment, "time", p.when(d.Until))})
}

// until is the time that a form chooses.
func (p *page) until(r *http.Request) (time.Time, bool) {
	choice, now := r.PostFormValue("for"), p.Now()
	if choice == "until" {
		t, err := time.ParseInLocation(untilLayout, r.PostFormValue("until"), now.Location())
		return t, err == nil && t.After(now) && !t.After(now.Add(agent.MaxPostponed))
	}
	for _, x := range postponements {
		if d, err := time.ParseDuration(x); err == nil && x == choice {
			return now.Add(d).Truncate(time.Second), true
		}
	}
	return time.Time{}, false
}

// reason is one line.
func reason(r *http.Request) string {
	return strings.Join(strings.Fields(r.PostFormValue("reason")), " ")
}

// accepted names the state that a rollback is to keep away: the form carries it, so that no newer one is meant.
func accepted(s status.Status) string {
	if s.Accepted == nil {
		return ""
	}
	return s.Accepted.Digest.String()
}

func (p *page) rollbackPage(w http.ResponseWriter, _ *http.Request, _ string, s *session) {
	p.show(w, http.StatusOK, content{Person: s.person.name, Flash: s.flash}, p.rollbackForm(accepted(p.Device.Status())))
}

func (p *page) rollBack(w http.ResponseWriter, r *http.Request, id string, s *session) {
	if !p.form(w, r) {
		return
	}
	why := reason(r)
	switch {
	case r.PostFormValue("state") != accepted(p.Device.Status()):
		p.result(w, r, id, flash{Text: p.Messages.Text("result.newstate"), Bad: true})
		return
	case why == "":
		p.result(w, r, id, flash{Text: p.Messages.Text("result.reason"), Bad: true})
		return
	}
	h, err := p.Device.RollBack(r.Context(), agent.RollbackRequest{By: s.by(), Via: via, Reason: why, Over: digest.Digest(r.PostFormValue("state"))})
	if err != nil {
		p.failed(w, r, id, err)
		return
	}
	p.result(w, r, id, flash{Text: p.Messages.Text("result.rolledback", "generation", h.Generation)})
}

func (p *page) releasePage(w http.ResponseWriter, _ *http.Request, _ string, s *session) {
	p.show(w, http.StatusOK, content{Person: s.person.name, Flash: s.flash}, p.releaseForm(p.Device.Status().Hold))
}

func (p *page) release(w http.ResponseWriter, r *http.Request, id string, s *session) {
	if !p.form(w, r) {
		return
	}
	h, err := p.Device.Release(r.Context(), s.by(), via)
	if err != nil {
		p.failed(w, r, id, err)
		return
	}
	p.result(w, r, id, flash{Text: p.Messages.Text("result.released", "generation", h.Generation)})
}

// failed tells why nothing was done.
func (p *page) failed(w http.ResponseWriter, r *http.Request, id string, err error) {
	key := "result.failed"
	if errors.Is(err, fault.ErrConflict) || errors.Is(err, fault.ErrNotFound) {
		key = "result.superseded"
		if !strings.HasPrefix(r.URL.Path, "/change/") {
			key = "result.failed"
		}
	}
	p.result(w, r, id, flash{Text: p.Messages.Text(key), Detail: err.Error(), Bad: true})
}

// result shows the overview next: a page that is loaded again decides nothing again.
func (p *page) result(w http.ResponseWriter, r *http.Request, id string, f flash) {
	p.sessions.tell(id, f)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
