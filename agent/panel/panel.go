// Package panel is a page for the people at a machine: what runs, what waits and what it would change. They approve, reject and postpone
// changes, roll the device back and release it, each with a PIN of their own.
//
// The page works without scripts and without a network, and nothing of it is loaded from elsewhere. Entry points are [New] for the handler,
// [ReadMessages] for its texts in another language and [ReadPINs] for the people who may log in. It neither listens nor speaks TLS.
//
// # Why
//
// A decision is a page of its own that does not renew itself: a list that moves while somebody touches it would have the wrong change approved.
package panel

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	g "maragu.dev/gomponents"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

//go:embed en.yaml static
var files embed.FS

const (
	maxForm     = 16 << 10
	callTimeout = 30 * time.Second // of a decision: it is saved on a disk that may be busy
	via         = "panel"
)

// Device is what the page shows and what is decided there; [agent.Agent] is one.
type Device interface {
	Status() status.Status
	Changes(ctx context.Context) ([]status.Change, error)
	Decide(ctx context.Context, r agent.DecisionRequest) (status.Change, error)
	RollBack(ctx context.Context, r agent.RollbackRequest) (status.Hold, error)
	Release(ctx context.Context, by, via string) (status.Hold, error)
}

var _ Device = (*agent.Agent)(nil)

// Options make the handler. Device, Log and Now are needed.
type Options struct {
	Device Device
	// PINFile names who may log in, see [ReadPINs]; it is read at each request. "": nobody decides anything.
	PINFile string
	// AnonymousViewers lets everybody look who reaches the page. Else the page shows nothing without a PIN.
	AnonymousViewers bool
	Messages         *Messages // nil: English
	Hosts            []string  // names that browsers may know the page by, beside localhost and addresses
	TLS              bool      // browsers reach it by TLS alone: they keep the session's cookie to that
	Log              *slog.Logger
	Now              func() time.Time // in the time zone of the device
}

type page struct {
	Options
	sessions sessions
	attempts attempts
	login    sync.Mutex // one PIN is compared at a time: those who guess cannot do so at once, nor use every processor
}

func New(o Options) (http.Handler, error) {
	if o.Messages == nil {
		var err error
		if o.Messages, err = English(); err != nil {
			return nil, err
		}
	}
	p := &page{Options: o, sessions: sessions{now: o.Now, all: map[string]*session{}}, attempts: attempts{now: o.Now, by: map[netip.Prefix]tries{}}}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, fmt.Errorf("open static files: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.look(p.overview))
	mux.HandleFunc("GET /login", p.loginPage)
	mux.HandleFunc("POST /login", p.logIn)
	mux.HandleFunc("POST /logout", p.logOut)
	mux.HandleFunc("GET /change/{id}", p.decider(p.changePage))
	mux.HandleFunc("POST /change/{id}", p.decider(p.decide))
	mux.HandleFunc("GET /rollback", p.decider(p.rollbackPage))
	mux.HandleFunc("POST /rollback", p.decider(p.rollBack))
	mux.HandleFunc("GET /release", p.decider(p.releasePage))
	mux.HandleFunc("POST /release", p.decider(p.release))
	mux.HandleFunc("GET /static/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, static, r.PathValue("name"))
	})
	return p.guard(http.NewCrossOriginProtection().Handler(mux)), nil
}

// guard refuses what no page of ours sends, and shuts out of the page what is not ours, whatever an application is called.
func (p *page) guard(next http.Handler) http.Handler {
	const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // with less, browsers send no origin with forms
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !p.known(r.Host) { // a page elsewhere whose name leads here would be of our origin
			http.Error(w, "The page is not known by this name. Add the name to panel.hosts in agent.yaml.", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// known reports whether a browser may call the page by a host. Addresses lead nowhere else.
func (p *page) known(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(p.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// content is what every page shows beside its own.
type content struct {
	Device   string
	Person   string // user that is logged in; "": none
	Flash    *flash // nil: none
	Overview bool   // which renews itself
}

func (p *page) show(w http.ResponseWriter, code int, c content, body g.Node) {
	c.Device = p.Device.Status().Device
	var b strings.Builder
	_ = p.document(c, body).Render(&b) // memory is always written
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, printable.Text(b.String())) // a browser obeys bidirectional controls in names and reasons
}

// unavailable answers while the agent does not: it starts, or it ends.
func (p *page) unavailable(w http.ResponseWriter, err error) {
	p.Log.Warn("panel: the agent does not answer", "err", err)
	w.Header().Set("Retry-After", "5")
	http.Error(w, p.Messages.Text("unavailable"), http.StatusServiceUnavailable)
}
