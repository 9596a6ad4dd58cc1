package panel

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// look is for those who may see the page.
func (p *page) look(f func(w http.ResponseWriter, r *http.Request, s *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, s := p.session(r)
		if s == nil && !p.AnonymousViewers {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		f(w, r, s)
	}
}

// decider is for those who logged in.
func (p *page) decider(f func(w http.ResponseWriter, r *http.Request, id string, s *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, s := p.session(r)
		switch {
		case s != nil:
			f(w, r, id, s)
		case r.Method == http.MethodPost:
			http.Redirect(w, r, "/login?ended", http.StatusSeeOther)
		default:
			http.Redirect(w, r, "/login", http.StatusSeeOther)
		}
	}
}

func (p *page) loginPage(w http.ResponseWriter, r *http.Request) {
	c := content{}
	if r.URL.Query().Has("ended") {
		c.Flash = &flash{Text: p.Messages.Text("login.ended"), Bad: true}
	}
	p.show(w, http.StatusOK, c, p.loginForm())
}

func (p *page) logIn(w http.ResponseWriter, r *http.Request) {
	refuse := func(code int, text string) {
		p.show(w, code, content{Flash: &flash{Text: text, Bad: true}}, p.loginForm())
	}
	if !p.form(w, r) {
		return
	}
	from := origin(r)
	p.login.Lock()
	defer p.login.Unlock()
	if until := p.attempts.locked(from); !until.IsZero() {
		w.Header().Set("Retry-After", strconv.Itoa(int(until.Sub(p.Now()).Seconds())+1))
		refuse(http.StatusTooManyRequests, p.Messages.Text("login.locked", "time", until.In(p.Now().Location()).Format(time.TimeOnly)))
		return
	}
	var people People
	err := errors.New("agent.yaml names no PIN file")
	if p.PINFile != "" {
		people, err = ReadPINs(p.PINFile)
	}
	if err != nil {
		p.Log.Error("panel: nobody can log in until the PIN file is repaired", "err", err)
		refuse(http.StatusServiceUnavailable, p.Messages.Text("login.nobody"))
		return
	}
	who := people.check(strings.TrimSpace(r.PostFormValue("name")), r.PostFormValue("pin"))
	if who == nil { // the log does not have the name either: it may be a PIN in the wrong field
		p.attempts.failed(from)
		p.Log.Warn("panel: a login failed", "address", from.Addr())
		refuse(http.StatusUnauthorized, p.Messages.Text("login.wrong"))
		return
	}
	p.attempts.passed(from)
	p.Log.Info("panel: somebody logged in", "name", who.name, "address", from.Addr())
	if id, _ := p.session(r); id != "" {
		p.sessions.close(id)
	}
	p.setCookie(w, p.sessions.open(*who))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (p *page) logOut(w http.ResponseWriter, r *http.Request) {
	if id, s := p.session(r); s != nil {
		p.sessions.close(id)
	}
	p.setCookie(w, "")
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// form reads the fields of a request; false: it was answered.
func (p *page) form(w http.ResponseWriter, r *http.Request) bool {
	err := r.ParseForm()
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		http.Error(w, "the form is too large", http.StatusRequestEntityTooLarge)
	case err != nil:
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
	default:
		return true
	}
	return false
}
