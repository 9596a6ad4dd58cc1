package status

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

func (a *api) putCapabilities(w http.ResponseWriter, r *http.Request, c Client) *problem {
	id, by, p := pathDevice(r, c)
	if p != nil {
		return p
	}
	body, p := a.read(w, r, c, MaxCapabilities)
	if p != nil {
		return p
	}
	const file = "capabilities"
	doc, p := parsed(a, r, file, body, margo.ParseDeviceCapabilities)
	if p != nil {
		return p
	}
	if doc.Properties.ID != id {
		return semantic("the body is about another device than the path", margo.ProblemField{Field: "properties.id", Message: fmt.Sprintf("must be %q", id)})
	}
	stamp, p := stampOf(r)
	if p != nil {
		return p
	}
	ctx, done, p := a.work(r)
	if p != nil {
		return p
	}
	defer done()
	report := store.Capabilities{Device: id, Body: body, Stamp: stamp, By: by, At: a.Now()}
	Summarize(&report)
	out, err := a.Store.PutCapabilities(ctx, report)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return gatewayNotFound("the gateway of " + id + " has not reported its own capabilities yet")
	case err != nil:
		return broke(err)
	}
	if out == store.Older {
		a.Logger.Warn("capabilities of another database of the device are not stored: they are older than its last report by the clock here", "device", id)
	}
	a.accepted(w, "capabilities", out)
	return nil
}

func (a *api) deleteCapabilities(w http.ResponseWriter, r *http.Request, c Client) *problem {
	id, _, p := pathDevice(r, c)
	if p != nil {
		return p
	}
	ctx, done, p := a.work(r)
	if p != nil {
		return p
	}
	defer done()
	switch err := a.Store.DeleteDevice(ctx, id); {
	case errors.Is(err, fault.ErrNotFound):
		return deviceNotFound("no device " + id + " is registered")
	case err != nil:
		return broke(err)
	}
	a.changed()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) postStatus(w http.ResponseWriter, r *http.Request, c Client) *problem {
	body, p := a.read(w, r, c, MaxStatus)
	if p != nil {
		return p
	}
	const file = "status"
	doc, p := parsed(a, r, file, body, margo.ParseDeploymentStatus)
	if p != nil {
		return p
	}
	device := cmp.Or(doc.DeviceID, r.Header.Get(HeaderDevice))
	if device == "" && len(c.Devices) > 1 {
		return semantic("this client has several devices", margo.ProblemField{Field: "deviceId", Message: "must say which one the report is about"})
	}
	device = cmp.Or(device, c.Devices[0])
	by, ok := c.For(device)
	if !ok {
		return notAuthorized("this client may not report for device " + device)
	}
	if wrong := inconsistent(r.PathValue("deploymentId"), doc); len(wrong) > 0 {
		return semantic("the report contradicts itself or its path", wrong...)
	}
	stamp, p := stampOf(r)
	if p != nil {
		return p
	}
	kept, err := keptOf(doc)
	if err != nil {
		return broke(err)
	}
	ctx, done, p := a.work(r)
	if p != nil {
		return p
	}
	defer done()
	seconds, _ := strconv.ParseInt(r.Header.Get(HeaderInterval), 10, 64) // other managers' devices do not say
	out, err := a.Store.PutStatus(ctx, store.Status{
		Device: device, Deployment: doc.DeploymentID, State: doc.Status.State, Body: kept, Interval: promised(seconds),
		Registered: device != by, Stamp: stamp, By: by, At: a.Now(),
	})
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return semantic("the device is not registered", margo.ProblemField{Field: "deviceId", Message: "no device " + device + " has reported its capabilities"})
	case err != nil:
		return broke(err)
	}
	if a.Desired != nil && out != store.Repeated {
		a.Desired.Adopted(c, doc.AdoptedManifestVersion)
	}
	a.accepted(w, "status", out)
	return nil
}

// inconsistent lists what a report says twice and differently. The overall state follows from the components by
// precedence; failed with an error of its own stands for itself, as when a gateway could not reach the device.
func inconsistent(id string, doc *margo.DeploymentStatus) []margo.ProblemField {
	var out []margo.ProblemField
	if doc.DeploymentID != id {
		out = append(out, margo.ProblemField{Field: "deploymentId", Message: fmt.Sprintf("must be %q, as in the path", id)})
	}
	own := doc.Status.State == margo.StateFailed && doc.Status.Error != nil
	want := margo.Overall(doc.Components)
	// The specification's list of states by precedence has removing twice and removed not at all: where removed stands is not certain.
	unclear := want == margo.StateRemoved && doc.Status.State == margo.StateInstalled && slices.ContainsFunc(doc.Components, func(c margo.ComponentStatus) bool { return c.State == margo.StateInstalled })
	if len(doc.Components) > 0 && !own && !unclear && doc.Status.State != want {
		out = append(out, margo.ProblemField{Field: "status.state", Message: fmt.Sprintf("must be %q, which the states of the components come to", want)})
	}
	return out
}

func (a *api) accepted(w http.ResponseWriter, kind string, out store.Outcome) {
	a.metrics.report(kind, out)
	if out != store.Repeated && out != store.Older {
		a.changed()
	}
	if out == store.Created {
		w.WriteHeader(http.StatusCreated)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// pathDevice returns the device that the path names, and the client's device that it is, or behind which it is.
func pathDevice(r *http.Request, c Client) (id, by string, p *problem) {
	id = r.PathValue("deviceId")
	if _, err := artifacts.ParseDeviceID(id); err != nil {
		return "", "", invalid(fmt.Sprintf("%q is no device id", id))
	}
	by, ok := c.For(id)
	if !ok {
		return "", "", notAuthorized("this client may not report for device " + id)
	}
	return id, by, nil
}

// parsed reads a body, few at a time.
func parsed[T any](a *api, r *http.Request, file string, body []byte, parse func(string, []byte) (T, error)) (doc T, p *problem) {
	select {
	case a.limits.parse <- struct{}{}:
		defer func() { <-a.limits.parse }()
	case <-r.Context().Done():
		return doc, busy("the request ended early")
	}
	doc, err := parse(file, body)
	if err != nil {
		return doc, malformed(file, body, err)
	}
	return doc, nil
}

// read takes a JSON body of limited size. A large one counts as several reports.
func (a *api) read(w http.ResponseWriter, r *http.Request, c Client, limit int64) ([]byte, *problem) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" || !slices.Contains([]string{"", "utf-8", "UTF-8"}, params["charset"]) {
		return nil, invalid("Content-Type must be application/json")
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, invalid("a body with Content-Encoding is not taken")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return nil, invalid(fmt.Sprintf("the body is larger than %d bytes", limit))
	case err != nil:
		return nil, invalid("the body ended early")
	case len(body) >= weight && !a.limits.allow(c.ID, a.Now(), len(body)/weight):
		return nil, slower()
	}
	return body, nil
}

// stampOf reads the headers that number a report: both or none.
func stampOf(r *http.Request) (store.Stamp, *problem) {
	epoch, number := r.Header.Get(HeaderEpoch), r.Header.Get(HeaderSequence)
	if epoch == "" && number == "" {
		return store.Stamp{}, nil
	}
	id, err := uuid.Parse(epoch)
	if err != nil || len(epoch) != len(id.String()) {
		return store.Stamp{}, invalid(HeaderEpoch + " must be a UUID")
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return store.Stamp{}, invalid(HeaderSequence + " must be a decimal number below 2^64")
	}
	return store.Stamp{Epoch: id.String(), Sequence: n}, nil
}
