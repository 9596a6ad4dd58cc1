package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// Sizes of pages.
const (
	pageSize    = 200
	maxPageSize = 1000
	// maxPerDevice is how many deployments of one device are told with it.
	maxPerDevice = 1000
)

// Device is a device as GET /fleet/v1/devices tells it. The JSON keys are stable; members may be added.
type Device struct {
	ID           string    `json:"id"`
	Registered   bool      `json:"registered"` // it reported its capabilities
	Vendor       string    `json:"vendor,omitempty"`
	ModelNumber  string    `json:"modelNumber,omitempty"`
	SerialNumber string    `json:"serialNumber,omitempty"`
	FirstHeard   time.Time `json:"firstHeard"`
	LastHeard    time.Time `json:"lastHeard"`
	Extra
	Deployments map[margo.State]int `json:"deployments"` // how many are in each state

	capabilities json.RawMessage // as reported; nil: never
}

// Equipped is a device as GET /fleet/v1/devices?capabilities=true tells it.
type Equipped struct {
	Device
	Capabilities json.RawMessage `json:"capabilities"` // as reported; null: never
}

// DeviceDetail is a device as GET /fleet/v1/devices/{id} tells it.
type DeviceDetail struct {
	Equipped
	Details []Deployment `json:"deploymentDetails"`
}

// Deployment is a deployment as GET /fleet/v1/deployments tells it.
type Deployment struct {
	DeviceID               string                  `json:"deviceId"`
	DeploymentID           string                  `json:"deploymentId"`
	AdoptedManifestVersion uint64                  `json:"adoptedManifestVersion"`
	State                  margo.State             `json:"state"`
	Error                  *margo.StatusError      `json:"error"` // null: none
	Components             []margo.ComponentStatus `json:"components"`
	Since                  time.Time               `json:"since"`    // when the state became this one
	Reported               time.Time               `json:"reported"` // when the last report was accepted
}

// Overview is everything that a page of devices shows.
type Overview struct {
	Devices     []Device
	Deployments []Deployment // of these devices, by device
	More        bool         // there are devices after the last
}

// Views handles /fleet/v1/. It knows no tokens: who may look is decided before it.
func Views(view store.View, log *slog.Logger) http.Handler {
	v := &views{view, log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /fleet/v1/devices", v.serve(v.devices))
	mux.HandleFunc("GET /fleet/v1/devices/{id...}", v.serve(v.device))
	mux.HandleFunc("GET /fleet/v1/deployments", v.serve(v.deployments))
	for _, path := range []string{"/fleet/v1/devices", "/fleet/v1/devices/{id...}", "/fleet/v1/deployments"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { v.refuse(w, r, allow("GET")(w, r)) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		v.refuse(w, r, blank(http.StatusNotFound, "there is nothing here"))
	})
	return mux
}

type views struct {
	view store.View
	log  *slog.Logger
}

func (v *views) serve(get func(*http.Request) (any, *problem)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		out, p := get(r.WithContext(ctx))
		if p != nil {
			v.refuse(w, r, p)
			return
		}
		b, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			v.refuse(w, r, broke(err))
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(append(b, '\n'))
	}
}

func (v *views) refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	if p.cause != nil {
		v.log.Error("request", "method", r.Method, "path", r.URL.Path, "error", p.cause)
	}
	p.Instance = r.URL.EscapedPath()
	p.write(w)
}

// devices answers GET /fleet/v1/devices?after=&limit=&refusing=true&capabilities=true: by id, "next" is the "after" of the
// next page. With what devices can do pages are smaller: a document may be large.
func (v *views) devices(r *http.Request) (any, *problem) {
	q := r.URL.Query()
	equipped, most := q.Get("capabilities") == "true", maxPageSize
	if equipped {
		most = pageSize
	}
	limit, p := pageLimit(r, most)
	if p != nil {
		return nil, p
	}
	o, err := Look(r.Context(), v.view, store.DeviceQuery{After: q.Get("after"), Limit: limit, Alarm: q.Get("refusing") == "true"})
	if err != nil {
		return nil, broke(err)
	}
	out := struct {
		Devices any    `json:"devices"`
		Next    string `json:"next,omitempty"`
	}{Devices: o.Devices}
	if equipped {
		all := make([]Equipped, len(o.Devices))
		for i, d := range o.Devices {
			all[i] = Equipped{d, d.capabilities}
		}
		out.Devices = all
	}
	if o.More {
		out.Next = o.Devices[len(o.Devices)-1].ID
	}
	return out, nil
}

func (v *views) device(r *http.Request) (any, *problem) {
	id := r.PathValue("id")
	d, err := v.view.Device(r.Context(), id)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, deviceNotFound("no device " + strconv.Quote(id) + " has reported")
	}
	if err != nil {
		return nil, broke(err)
	}
	all, err := v.view.Deployments(r.Context(), store.DeploymentQuery{Device: id, Limit: maxPerDevice})
	if err != nil {
		return nil, broke(err)
	}
	out := DeviceDetail{Equipped: Equipped{deviceOf(d), d.Capabilities}, Details: make([]Deployment, 0, len(all))}
	for _, s := range all {
		out.Deployments[s.State]++
		out.Details = append(out.Details, deploymentOf(s))
	}
	return out, nil
}

// deployments answers GET /fleet/v1/deployments?device=&state=&limit=&afterDevice=&afterDeployment=.
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
	all, err := v.view.Deployments(r.Context(), store.DeploymentQuery{
		Device: q.Get("device"), State: state, After: [2]string{q.Get("afterDevice"), q.Get("afterDeployment")}, Limit: limit + 1,
	})
	if err != nil {
		return nil, broke(err)
	}
	type next struct {
		AfterDevice     string `json:"afterDevice"`
		AfterDeployment string `json:"afterDeployment"`
	}
	out := struct {
		Deployments []Deployment `json:"deployments"`
		Next        *next        `json:"next,omitempty"`
	}{Deployments: []Deployment{}}
	if len(all) > limit {
		all = all[:limit]
		out.Next = &next{all[limit-1].Device, all[limit-1].ID}
	}
	for _, s := range all {
		out.Deployments = append(out.Deployments, deploymentOf(s))
	}
	return out, nil
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

// Look reads a page of devices with their deployments.
func Look(ctx context.Context, view store.View, q store.DeviceQuery) (Overview, error) {
	limit := q.Limit
	q.Limit++
	found, err := view.Devices(ctx, q)
	if err != nil {
		return Overview{}, err
	}
	out := Overview{Devices: []Device{}, More: len(found) > limit}
	if out.More {
		found = found[:limit]
	}
	index := map[string]int{}
	for i, d := range found {
		index[d.ID] = i
		out.Devices = append(out.Devices, deviceOf(d))
	}
	if len(found) == 0 {
		return out, nil
	}
	all, err := view.Deployments(ctx, store.DeploymentQuery{From: found[0].ID, To: found[len(found)-1].ID, Limit: maxPerDevice * len(found)})
	if err != nil {
		return Overview{}, err
	}
	for _, s := range all {
		if i, ok := index[s.Device]; ok {
			out.Devices[i].Deployments[s.State]++
			out.Deployments = append(out.Deployments, deploymentOf(s))
		}
	}
	return out, nil
}

// deviceOf reads what was checked when it was taken; what cannot be read any more is left out.
func deviceOf(d store.Device) Device {
	out := Device{ID: d.ID, Registered: d.Capabilities != nil, FirstHeard: d.FirstHeard, LastHeard: d.LastHeard, Deployments: map[margo.State]int{}, capabilities: d.Capabilities}
	if d.Capabilities != nil {
		var doc margo.DeviceCapabilities
		if err := json.Unmarshal(d.Capabilities, &doc); err == nil {
			out.Vendor, out.ModelNumber, out.SerialNumber = doc.Properties.Vendor, doc.Properties.ModelNumber, doc.Properties.SerialNumber
		}
		out.Extra = extraOf(d.Capabilities)
	}
	if out.Insecure == nil {
		out.Insecure = []string{}
	}
	return out
}

func deploymentOf(s store.Deployment) Deployment {
	out := Deployment{
		DeviceID: s.Device, DeploymentID: s.ID, State: s.State, Since: s.Since, Reported: s.Reported, Components: []margo.ComponentStatus{},
	}
	if doc, err := margo.ParseDeploymentStatus("status", s.Body); err == nil {
		out.AdoptedManifestVersion, out.Error = doc.AdoptedManifestVersion, doc.Status.Error
		out.Components = append(out.Components, doc.Components...)
	}
	return out
}

// Failed reads deployments that failed, by device.
func Failed(ctx context.Context, view store.View, limit int) ([]Deployment, error) {
	all, err := view.Deployments(ctx, store.DeploymentQuery{State: margo.StateFailed, Limit: limit})
	if err != nil {
		return nil, err
	}
	out := make([]Deployment, 0, len(all))
	for _, s := range all {
		out = append(out, deploymentOf(s))
	}
	return out, nil
}
