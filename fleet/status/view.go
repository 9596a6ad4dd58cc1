package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet/store"
)

// Sizes of pages.
const (
	pageSize    = 200
	maxPageSize = 1000
	// maxPerDevice is how many deployments of one device are shown with it.
	maxPerDevice = 1000
	// pageBytes bounds what is read for a page. Its JSON, while it is made, takes a few times that.
	pageBytes = 1 << 20
)

// Device is a device in the answer of GET /fleet/v1/devices. The JSON keys are stable; members may be added.
type Device struct {
	ID           string    `json:"id"`
	Registered   bool      `json:"registered"` // it reported its capabilities
	Vendor       string    `json:"vendor,omitempty"`
	ModelNumber  string    `json:"modelNumber,omitempty"`
	SerialNumber string    `json:"serialNumber,omitempty"`
	FirstHeard   time.Time `json:"firstHeard"`
	LastHeard    time.Time `json:"lastHeard"`
	Ago          int64     `json:"lastHeardSecondsAgo"`    // at the time of this answer, by the clock that LastHeard is of
	NextDue      time.Time `json:"nextReportDue,omitzero"` // when it is to be heard again at the latest; left out: it does not say
	OfflineSince time.Time `json:"offlineSince,omitzero"`  // last report of an offline device; left out: it is online
	Extra
	Deployments map[margo.State]int `json:"deployments"` // how many are in each state

	capabilities json.RawMessage // as reported; nil: never
}

// DeviceWithCapabilities is a device in the answer of GET /fleet/v1/devices?capabilities=true.
type DeviceWithCapabilities struct {
	Device
	Capabilities json.RawMessage `json:"capabilities"` // as reported; null: never
}

// DeviceDetail is the answer of GET /fleet/v1/devices/{id}.
type DeviceDetail struct {
	DeviceWithCapabilities
	Details []Deployment `json:"deploymentDetails"`
	Next    *Cursor      `json:"next,omitempty"` // of GET /fleet/v1/deployments?device=, where not all fit in; null: these are all
}

// Cursor is the deployment after which the next page begins.
type Cursor struct {
	AfterDevice     string `json:"afterDevice"`
	AfterDeployment string `json:"afterDeployment"`
}

// Deployment is a deployment in the answer of GET /fleet/v1/deployments.
type Deployment struct {
	DeviceID               string                  `json:"deviceId"`
	DeploymentID           string                  `json:"deploymentId"`
	AdoptedManifestVersion uint64                  `json:"adoptedManifestVersion"`
	State                  margo.State             `json:"state"`
	Error                  *margo.StatusError      `json:"error"` // null: none
	Components             []margo.ComponentStatus `json:"components"`
	ComponentsOmitted      int                     `json:"componentsOmitted,omitempty"` // that did not fit in
	Since                  time.Time               `json:"since"`                       // when the state became this one
	Reported               time.Time               `json:"reported"`                    // when the last report was accepted
}

// Viewer reads the content of views. All but Up and OfflineAfter must be set.
type Viewer struct {
	View store.View
	Now  func() time.Time
	Up   func() time.Duration // how long reports have been taken, whatever the clock said at the start: before, no device was silent; nil: always
	// OfflineAfter is when a device counts as offline that has not said how often it reports; 0: never.
	OfflineAfter time.Duration
	Logger       *slog.Logger

	mu    sync.Mutex
	since time.Time // see began
}

// Silence is how long devices may be silent, now.
func (v *Viewer) Silence() store.Silence {
	s := store.Silence{Now: v.Now(), After: v.OfflineAfter}
	if v.Up != nil {
		s.Since = v.began(s.Now.Add(-v.Up()))
	}
	return s
}

// began is the same time at each read, unless the clock was set: the argument is computed from two clocks.
func (v *Viewer) began(at time.Time) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at.Sub(v.since).Abs() > time.Second {
		v.since = at.Round(time.Second)
	}
	return v.since
}

// Views handles /fleet/v1/. It does not authenticate: that is done before it. What it holds in memory for one answer
// is bounded; how many answers are made at once is for a [Gate].
func Views(viewer *Viewer) http.Handler {
	v := &views{viewer}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /fleet/v1/devices", v.serve(v.devices))
	mux.HandleFunc("GET /fleet/v1/devices/{id...}", v.serve(v.detail))
	mux.HandleFunc("GET /fleet/v1/deployments", v.serve(v.deployments))
	for _, path := range []string{"/fleet/v1/devices", "/fleet/v1/devices/{id...}", "/fleet/v1/deployments"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { allow("GET")(w, r).write(w, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		Refuse(w, r, http.StatusNotFound, "no such resource")
	})
	return mux
}

type views struct{ *Viewer }

func (v *views) serve(get func(*http.Request) (any, *problem)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CallTimeout)
		defer cancel()
		out, p := get(r.WithContext(ctx))
		if p != nil {
			p.answer(w, r, v.Logger)
			return
		}
		b, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			broke(err).answer(w, r, v.Logger)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, printable.Text(string(b))+"\n") // the same JSON, that a terminal may show
	}
}

// devices answers GET /fleet/v1/devices?after=&limit=&refusing=true&offline=true&capabilities=true: by id, "next" is the
// "after" of the next page. A page ends early when it becomes large.
func (v *views) devices(r *http.Request) (any, *problem) {
	q := r.URL.Query()
	capabilities, most := q.Get("capabilities") == "true", maxPageSize
	if capabilities {
		most = pageSize
	}
	limit, p := pageLimit(r, most)
	if p != nil {
		return nil, p
	}
	query := store.DeviceQuery{After: q.Get("after"), Limit: limit, Alarm: q.Get("refusing") == "true", Capabilities: capabilities}
	if q.Get("offline") == "true" {
		query.Offline = new(v.Silence())
	}
	list, more, err := v.Devices(r.Context(), query)
	if err != nil {
		return nil, broke(err)
	}
	out := struct {
		Devices any    `json:"devices"`
		Next    string `json:"next,omitempty"`
	}{Devices: list}
	if capabilities {
		all := make([]DeviceWithCapabilities, len(list))
		for i, d := range list {
			all[i] = DeviceWithCapabilities{d, d.capabilities}
		}
		out.Devices = all
	}
	if more {
		out.Next = list[len(list)-1].ID
	}
	return out, nil
}

func (v *views) detail(r *http.Request) (any, *problem) {
	id := r.PathValue("id")
	d, err := v.View.Device(r.Context(), id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, deviceNotFound("no device " + strconv.Quote(id) + " has reported")
	}
	if err != nil {
		return nil, broke(err)
	}
	all, more, err := v.View.Deployments(r.Context(), store.DeploymentQuery{Device: id, Limit: maxPerDevice, Bytes: pageBytes})
	if err != nil {
		return nil, broke(err)
	}
	counts, err := v.View.Counts(r.Context(), []string{id})
	if err != nil {
		return nil, broke(err)
	}
	out := DeviceDetail{DeviceWithCapabilities: DeviceWithCapabilities{v.device(d, counts[id]), d.Capabilities}, Details: make([]Deployment, 0, len(all))}
	for _, s := range all {
		out.Details = append(out.Details, deploymentOf(s))
	}
	if more {
		out.Next = cursorOf(all)
	}
	return out, nil
}

// deployments answers GET /fleet/v1/deployments?device=&state=&limit=&afterDevice=&afterDeployment=. A page ends early when
// it becomes large.
func (v *views) deployments(r *http.Request) (any, *problem) {
	limit, p := pageLimit(r, maxPageSize)
	if p != nil {
		return nil, p
	}
	q := r.URL.Query()
	state := margo.State(q.Get("state"))
	if state != "" && !slices.Contains(states(), state) {
		return nil, invalid(fmt.Sprintf("%q is no state", state))
	}
	all, more, err := v.View.Deployments(r.Context(), store.DeploymentQuery{
		Device: q.Get("device"), State: state, After: [2]string{q.Get("afterDevice"), q.Get("afterDeployment")}, Limit: limit, Bytes: pageBytes,
	})
	if err != nil {
		return nil, broke(err)
	}
	out := struct {
		Deployments []Deployment `json:"deployments"`
		Next        *Cursor      `json:"next,omitempty"`
	}{Deployments: []Deployment{}}
	for _, s := range all {
		out.Deployments = append(out.Deployments, deploymentOf(s))
	}
	if more {
		out.Next = cursorOf(all)
	}
	return out, nil
}

func cursorOf(page []store.Deployment) *Cursor {
	last := page[len(page)-1]
	return &Cursor{last.Device, last.ID}
}

func pageLimit(r *http.Request, most int) (int, *problem) {
	s := r.URL.Query().Get("limit")
	if s == "" {
		return pageSize, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, invalid(fmt.Sprintf("limit must be from 1 to %d", most))
	}
	return n, nil
}

// Devices reads a page of devices; more reports whether there are others after it.
func (v *Viewer) Devices(ctx context.Context, q store.DeviceQuery) (list []Device, more bool, err error) {
	q.Bytes = cmp.Or(q.Bytes, pageBytes)
	found, more, err := v.View.Devices(ctx, q)
	if err != nil {
		return nil, false, err
	}
	ids := make([]string, 0, len(found))
	for _, d := range found {
		ids = append(ids, d.ID)
	}
	counts, err := v.View.Counts(ctx, ids)
	if err != nil {
		return nil, false, err
	}
	list = make([]Device, 0, len(found))
	for _, d := range found {
		list = append(list, v.device(d, counts[d.ID]))
	}
	return list, more, nil
}

// device is a device's entry in lists; unreadable values are left out.
func (v *Viewer) device(d store.Device, counts map[margo.State]int) Device {
	out := Device{ID: d.ID, Registered: d.Registered, FirstHeard: d.FirstHeard, LastHeard: d.LastHeard, Deployments: counts, capabilities: d.Capabilities}
	var s summary
	if json.Unmarshal(d.Summary, &s) == nil {
		out.Vendor, out.ModelNumber, out.SerialNumber, out.Extra = s.Vendor, s.ModelNumber, s.SerialNumber, s.Extra
	}
	silence := v.Silence()
	out.Ago = int64(max(0, silence.Now.Sub(d.LastHeard)) / time.Second)
	if d.Interval > 0 {
		out.NextDue = d.LastHeard.Add(d.Interval)
	}
	if silence.Offline(d) {
		out.OfflineSince = d.LastHeard
		if out.OfflineSince.After(silence.Now) { // the clock was ahead then
			out.OfflineSince = silence.Since
		}
	}
	if out.Insecure == nil {
		out.Insecure = []string{}
	}
	if out.Deployments == nil {
		out.Deployments = map[margo.State]int{}
	}
	return out
}

func deploymentOf(s store.Deployment) Deployment {
	out := Deployment{
		DeviceID: s.Device, DeploymentID: s.ID, State: s.State, Since: s.Since, Reported: s.Reported, Components: []margo.ComponentStatus{},
	}
	var k kept
	if json.Unmarshal(s.Body, &k) == nil {
		out.AdoptedManifestVersion, out.Error, out.ComponentsOmitted = k.AdoptedManifestVersion, k.Status.Error, k.Omitted
		out.Components = append(out.Components, k.Components...)
	}
	return out
}

// Deployments reads deployments, and how many bytes of their reports that were.
func (v *Viewer) Deployments(ctx context.Context, q store.DeploymentQuery) (list []Deployment, bytes int, err error) {
	all, _, err := v.View.Deployments(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	list = make([]Deployment, 0, len(all))
	for _, s := range all {
		list, bytes = append(list, deploymentOf(s)), bytes+len(s.Body)
	}
	return list, bytes, nil
}
