// Package web is the fleet on one page: devices, their deployments, components, states and errors, problems first, live.
//
// The page is rendered here and works without scripts; with them it renews itself when a server-sent event says that
// something changed. Nothing is loaded from elsewhere and nothing needs to be built.
package web

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

//go:embed page.html static
var files embed.FS

const (
	devicesPerPage = 100
	problemsShown  = 20
)

// Options make the handler; all must be set.
type Options struct {
	View    store.View
	Hub     *Hub
	Now     func() time.Time
	Logger  *slog.Logger
	Version string
}

type page struct {
	Options
	tmpl *template.Template
}

// New handles "/", "/fragment", "/events" and "/static/". It knows no tokens: who may look is decided before it.
func New(o Options) (http.Handler, error) {
	p := &page{Options: o}
	var err error
	p.tmpl, err = template.New("").Funcs(template.FuncMap{
		"ago": func(t time.Time) string { return ago(o.Now(), t) }, "short": short, "utc": utc, "order": order,
		"told": told,
	}).ParseFS(files, "page.html")
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, fmt.Errorf("open static files: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.serve("page"))
	mux.HandleFunc("GET /fragment", p.serve("fragment"))
	mux.Handle("GET /events", o.Hub)
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	return headers(mux), nil
}

// headers shut out everything that is not ours, whatever a device manages to put on the page.
func headers(next http.Handler) http.Handler {
	const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// content is what the template shows.
type content struct {
	Now      time.Time
	Version  string
	Summary  store.Summary
	Refusing []status.Device
	Failed   []status.Deployment
	Devices  []device
	After    string // of this page; "": the first
	Next     string // query of the next page; "": there is none
	Problems int    // all, also those that are not shown
}

type device struct {
	status.Device
	List []status.Deployment
}

func (p *page) serve(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := p.content(r)
		if err != nil {
			p.Logger.Error("read the fleet", "error", err)
			http.Error(w, "The database does not answer. The page tries again when it is loaded again.", http.StatusServiceUnavailable)
			return
		}
		var b bytes.Buffer
		if err := p.tmpl.ExecuteTemplate(&b, name, c); err != nil {
			p.Logger.Error("render the fleet", "error", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(b.Bytes())
	}
}

func (p *page) content(r *http.Request) (*content, error) {
	ctx := r.Context()
	c := &content{Now: p.Now(), Version: p.Version, After: r.URL.Query().Get("after")}
	var err error
	if c.Summary, err = p.View.Summary(ctx); err != nil {
		return nil, err
	}
	refusing, err := status.Look(ctx, p.View, store.DeviceQuery{Alarm: true, Limit: problemsShown})
	if err != nil {
		return nil, err
	}
	c.Refusing = refusing.Devices
	if c.Failed, err = status.Failed(ctx, p.View, problemsShown); err != nil {
		return nil, err
	}
	c.Problems = c.Summary.Alarms + c.Summary.Deployments[margo.StateFailed]
	all, err := status.Look(ctx, p.View, store.DeviceQuery{After: c.After, Limit: devicesPerPage})
	if err != nil {
		return nil, err
	}
	of := map[string][]status.Deployment{}
	for _, d := range all.Deployments {
		of[d.DeviceID] = append(of[d.DeviceID], d)
	}
	for _, d := range all.Devices {
		c.Devices = append(c.Devices, device{d, of[d.ID]})
	}
	if all.More {
		c.Next = "?" + url.Values{"after": {all.Devices[len(all.Devices)-1].ID}}.Encode()
	}
	return c, nil
}

// order is how states stand beside each other, worst first.
func order() []margo.State {
	return []margo.State{
		margo.StateFailed, margo.StateInstalling, margo.StatePending, margo.StateRemoving, margo.StateInstalled, margo.StateRemoved,
	}
}

// ago tells a distance in time in the largest unit that fits.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}} {
		if d >= u.size {
			return fmt.Sprintf("%d %s", d/u.size, u.name)
		}
	}
	return "now"
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// short cuts digests and identifiers to what people compare.
func short(s string) string {
	algorithm, hex, ok := strings.Cut(s, ":")
	if ok && len(hex) > 12 {
		return algorithm + ":" + hex[:12] + "…"
	}
	if len(s) == 36 {
		return s[:8]
	}
	return s
}

// told tells whether a component says what went wrong: the deployment's own error only repeats it then.
func told(d status.Deployment) bool {
	return slices.ContainsFunc(d.Components, func(c margo.ComponentStatus) bool { return c.Error != nil })
}
