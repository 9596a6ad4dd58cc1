// Package web is the fleet on one page: devices, their deployments, components, states and errors, problems first, live.
//
// The page is rendered here and works without scripts; with them it renews itself when a server-sent event says that
// something changed. Nothing is loaded from elsewhere and nothing needs to be built.
package web

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	g "maragu.dev/gomponents"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

//go:embed static
var files embed.FS

const (
	devicesPerPage   = 100
	problemsShown    = 20 // of a kind
	deploymentsShown = 20 // of one device, those that are not installed first
	pageBytes        = 256 << 10
	deploymentsBytes = 1 << 20 // of all deployments on one page
)

// Options make the handler; all must be set.
type Options struct {
	Viewer  *status.Viewer
	Hub     *Hub
	Gate    *status.Gate // that the page shares with other views
	Version string
}

type page struct{ Options }

// New handles "/", "/fragment", "/events" and "/static/". It does not authenticate: that is done before it.
func New(o Options) (http.Handler, error) {
	p := &page{o}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, fmt.Errorf("open static files: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", o.Gate.Wrap(p.serve((*content).document)))
	mux.Handle("GET /fragment", o.Gate.Wrap(p.serve((*content).fragment)))
	mux.Handle("GET /events", o.Hub)
	mux.HandleFunc("GET /static/{name}", func(w http.ResponseWriter, r *http.Request) {
		if _, err := fs.Stat(static, r.PathValue("name")); err != nil {
			nothing(w, r)
			return
		}
		http.ServeFileFS(w, r, static, r.PathValue("name"))
	})
	for _, path := range []string{"/{$}", "/fragment", "/events", "/static/{name}"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			status.Refuse(w, r, http.StatusMethodNotAllowed, "only GET here")
		})
	}
	mux.HandleFunc("/", nothing)
	return headers(mux), nil
}

func nothing(w http.ResponseWriter, r *http.Request) {
	status.Refuse(w, r, http.StatusNotFound, "no such resource")
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

// content is what the page shows.
type content struct {
	Now      time.Time
	Version  string
	Summary  store.Summary
	Offline  []status.Device
	Refusing []status.Device
	Failed   []status.Deployment
	Devices  []device
	After    string // of this page; "": the first
	Next     string // query of the next page; "": there is none
	Problems int    // all, also those that are not shown
	Unshown  int    // of Problems
}

// Link leads to a device, which may be on another page.
func (c *content) Link(id string) string {
	if slices.ContainsFunc(c.Devices, func(d device) bool { return d.ID == id }) {
		return "#" + id
	}
	last := len(id) - 1
	return "?" + url.Values{"after": {id[:last] + string(rune(id[last]-1)) + "~"}}.Encode() + "#" + id // hardly any id is between these two
}

type device struct {
	status.Device
	List    []status.Deployment
	Unshown int // deployments that are not in List
}

func (p *page) serve(show func(*content) g.Node) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := p.content(r)
		if err != nil {
			p.Viewer.Logger.Error("read the fleet", "error", err)
			w.Header().Set("Retry-After", "5")
			http.Error(w, "The database does not answer. The page tries again when it is loaded again.", http.StatusServiceUnavailable)
			return
		}
		var b strings.Builder
		_ = show(c).Render(&b) // memory is always written
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, printable.Text(b.String())) // a browser obeys bidirectional controls in what devices say
	}
}

func (p *page) content(r *http.Request) (*content, error) {
	v := p.Viewer
	ctx, cancel := context.WithTimeout(r.Context(), status.CallTimeout)
	defer cancel()
	silence := v.Silence()
	c := &content{Now: silence.Now, Version: p.Version, After: r.URL.Query().Get("after")}
	var err error
	if c.Summary, err = v.View.Summary(ctx, silence); err != nil {
		return nil, err
	}
	if c.Offline, _, err = v.Devices(ctx, store.DeviceQuery{Offline: &silence, Limit: problemsShown, Bytes: pageBytes}); err != nil {
		return nil, err
	}
	if c.Refusing, _, err = v.Devices(ctx, store.DeviceQuery{Alarm: true, Limit: problemsShown, Bytes: pageBytes}); err != nil {
		return nil, err
	}
	if c.Failed, _, err = v.Deployments(ctx, store.DeploymentQuery{State: margo.StateFailed, Limit: problemsShown, Bytes: pageBytes}); err != nil {
		return nil, err
	}
	c.Problems = c.Summary.Alarms + c.Summary.Offline + c.Summary.Deployments[margo.StateFailed]
	c.Unshown = max(0, c.Problems-len(c.Offline)-len(c.Refusing)-len(c.Failed))
	devices, more, err := v.Devices(ctx, store.DeviceQuery{After: c.After, Limit: devicesPerPage, Bytes: pageBytes})
	if err != nil {
		return nil, err
	}
	left := deploymentsBytes
	for _, d := range devices {
		one := device{Device: d}
		for _, n := range d.Deployments {
			one.Unshown += n
		}
		if left > 0 && one.Unshown > 0 {
			list, size, err := v.Deployments(ctx, store.DeploymentQuery{Device: d.ID, Worst: true, Limit: deploymentsShown, Bytes: left})
			if err != nil {
				return nil, err
			}
			one.List, left = list, left-size
		}
		one.Unshown = max(0, one.Unshown-len(one.List)) // a report may have come between the two looks
		c.Devices = append(c.Devices, one)
	}
	if more {
		c.Next = "?" + url.Values{"after": {devices[len(devices)-1].ID}}.Encode()
	}
	return c, nil
}

// order is how states stand beside each other, worst first.
func order() []margo.State {
	return []margo.State{
		margo.StateFailed, margo.StateInstalling, margo.StatePending, margo.StateRemoving, margo.StateInstalled, margo.StateRemoved,
	}
}

// ago formats a duration in the largest unit that fits.
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
	return "0 s"
}

// componentError reports whether a component has an error: the deployment's own error only repeats it then.
func componentError(d status.Deployment) bool {
	return slices.ContainsFunc(d.Components, func(c margo.ComponentStatus) bool { return c.Error != nil })
}
