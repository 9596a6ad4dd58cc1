package panel

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"
)

const (
	idleLimit    = 5 * time.Minute // somebody who went away without logging out
	sessionLimit = 8 * time.Hour   // a shift
	maxSessions  = 64
)

// session is somebody who logged in.
type session struct {
	person person // as the PIN file had them: the session ends when that changes
	born   time.Time
	used   time.Time
	flash  *flash // for the next page
}

// flash is what became of a decision, told once on the next page.
type flash struct {
	Text   string
	Detail string // of the agent, in English; "": none
	Bad    bool
}

// sessions are in memory: they end with the agent.
type sessions struct {
	now func() time.Time

	mu  sync.Mutex
	all map[string]*session // by the value of the cookie
}

// open starts a session and returns the value of its cookie.
func (s *sessions) open(who person) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var oldest string
	for id, x := range s.all {
		if x.over(now) {
			delete(s.all, id)
		} else if o := s.all[oldest]; o == nil || x.used.Before(o.used) {
			oldest = id
		}
	}
	if len(s.all) >= maxSessions {
		delete(s.all, oldest)
	}
	id := rand.Text()
	s.all[id] = &session{person: who, born: now, used: now}
	return id
}

// get returns a copy of a session; nil: there is none, or it has ended. use says that a person did something, and takes the flash.
func (s *sessions) get(id string, use bool) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, now := s.all[id], s.now()
	if x == nil {
		return nil
	}
	if x.over(now) {
		delete(s.all, id)
		return nil
	}
	out := *x
	if use {
		x.used, x.flash = now, nil
	}
	return &out
}

func (s *sessions) tell(id string, f flash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[id]; x != nil {
		x.flash = &f
	}
}

func (s *sessions) close(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

func (x *session) over(now time.Time) bool {
	return now.Sub(x.used) >= idleLimit || now.Sub(x.born) >= sessionLimit
}

// cookieName has a prefix by which browsers take it from this host alone, and by TLS alone, where there is TLS.
func (p *page) cookieName() string {
	if p.TLS {
		return "__Host-longshore-panel"
	}
	return "longshore-panel"
}

func (p *page) setCookie(w http.ResponseWriter, value string) {
	c := &http.Cookie{Name: p.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: p.TLS, SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// session is that of a request; nil: there is none. id is the value of its cookie. A request by which the page renews itself is no use.
func (p *page) session(r *http.Request) (id string, s *session) {
	c, err := r.Cookie(p.cookieName())
	if err != nil || p.PINFile == "" {
		return "", nil
	}
	renewal := r.Method == http.MethodGet && r.URL.Query().Has("renew")
	if s = p.sessions.get(c.Value, !renewal); s == nil {
		return "", nil
	}
	people, err := ReadPINs(p.PINFile)
	if err != nil {
		p.Log.Error("panel: nobody can log in until the PIN file is repaired", "err", err)
	}
	if who := people.find(s.person.name); who == nil || *who != s.person {
		p.sessions.close(c.Value)
		return "", nil
	}
	return c.Value, s
}
