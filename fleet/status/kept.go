package status

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// Limits of what is kept of a report: views hold a page of them in memory. What is longer is cut, and ends in "…".
const (
	maxWord       = 200     // bytes of a name, a code
	maxMessage    = 2 << 10 // bytes of a message
	maxComponents = 128     // of a deployment
	maxKept       = 32 << 10
	maxInsecure   = 32
	maxSecurity   = 8
	maxWaiting    = 8
	maxDecisions  = 8
	maxInterval   = 7 * 24 * 3600 // seconds in which a device may promise to report
)

// summary is the part of a device's capabilities in lists.
type summary struct {
	Vendor       string `json:"vendor,omitempty"`
	ModelNumber  string `json:"modelNumber,omitempty"`
	SerialNumber string `json:"serialNumber,omitempty"`
	Extra
}

// Summarize fills in what follows from the body of a capabilities report: Summary, Alarm and Interval. What the
// specification does not know, and cannot be read, is ignored.
func Summarize(r *store.Capabilities) {
	var doc struct {
		Properties struct{ Vendor, ModelNumber, SerialNumber string }
		Extra      json.RawMessage `json:"x-longshore-extensions"`
	}
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		return
	}
	s := summary{Vendor: cut(doc.Properties.Vendor, maxWord), ModelNumber: cut(doc.Properties.ModelNumber, maxWord), SerialNumber: cut(doc.Properties.SerialNumber, maxWord)}
	if len(doc.Extra) > 0 && json.Unmarshal(doc.Extra, &s.Extra) != nil {
		s.Extra = readable(doc.Extra)
	}
	s.Extra.clip()
	r.Interval = promised(s.ReportIntervalSeconds)
	b, err := json.Marshal(s)
	if err != nil {
		return
	}
	r.Summary, r.Alarm = b, s.Refused != nil
}

// readable is what can be read of an extension: a member that cannot be read must not hide the others. Whatever a hold and changes that wait look
// like, they are there.
func readable(data []byte) (x Extra) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(data, &members) // nothing of it can be read
	for _, name := range slices.Sorted(maps.Keys(members)) {
		one, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		with := x
		switch {
		case err == nil && json.Unmarshal(one, &with) == nil:
			x = with
		case name == "hold":
			x.Hold = artifacts.UnreadableHold()
		case name == "waiting":
			x.Waiting = artifacts.UnreadableWaits()
		default:
			x.Unreadable = append(x.Unreadable, name)
		}
	}
	return x
}

// promised is the interval in which a device says that it reports; 0: it does not say, or promises nothing that can be held.
func promised(seconds int64) time.Duration {
	if seconds <= 0 || seconds > maxInterval {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func (x *Extra) clip() {
	x.AgentVersion, x.Digest = cut(x.AgentVersion, maxWord), cut(x.Digest, maxWord)
	if r := x.Refused; r != nil {
		r.Digest, r.Code, r.Message = cut(r.Digest, maxWord), cut(r.Code, maxWord), cut(r.Message, maxMessage)
	}
	if h := x.Hold; h != nil {
		h.By, h.Via, h.Reason = cut(h.By, maxWord), cut(h.Via, maxWord), cut(h.Reason, maxMessage/2)
	}
	x.Waiting = x.Waiting[:min(len(x.Waiting), maxWaiting)]
	for i := range x.Waiting {
		w := &x.Waiting[i]
		w.Deployment, w.Name, w.Code, w.Message = cut(w.Deployment, maxWord), cut(w.Name, maxWord), cut(w.Code, maxWord), cut(w.Message, maxMessage/4)
	}
	x.Decisions = x.Decisions[max(0, len(x.Decisions)-maxDecisions):]
	for i := range x.Decisions {
		d := &x.Decisions[i]
		d.Verdict, d.Deployment, d.Digest = cut(d.Verdict, maxWord), cut(d.Deployment, maxWord), digest.Digest(cut(string(d.Digest), maxWord))
		d.By, d.Via, d.Reason = cut(d.By, maxWord), cut(d.Via, maxWord), cut(d.Reason, maxMessage/4)
	}
	if x.Progress != nil && x.Progress.Phase == "" {
		x.Progress = nil
	}
	x.Unreadable = x.Unreadable[:min(len(x.Unreadable), maxWaiting)]
	for i := range x.Unreadable {
		x.Unreadable[i] = cut(x.Unreadable[i], maxWord)
	}
	x.Insecure = x.Insecure[:min(len(x.Insecure), maxInsecure)]
	for i := range x.Insecure {
		x.Insecure[i] = cut(x.Insecure[i], maxWord)
	}
	x.Security = x.Security[max(0, len(x.Security)-maxSecurity):]
	for i := range x.Security {
		e := &x.Security[i]
		e.Code, e.Digest, e.Message = cut(e.Code, maxWord), cut(e.Digest, maxWord), cut(e.Message, maxMessage/2)
	}
}

// kept is what is stored of a status report: a Margo status with short texts, and how many components it leaves out.
type kept struct {
	AdoptedManifestVersion uint64                  `json:"adoptedManifestVersion"`
	Status                 margo.OverallStatus     `json:"status"`
	Components             []margo.ComponentStatus `json:"components"`
	Omitted                int                     `json:"componentsOmitted,omitempty"`
}

// keptOf reduces a report to its stored form.
func keptOf(d *margo.DeploymentStatus) ([]byte, error) {
	k := kept{AdoptedManifestVersion: d.AdoptedManifestVersion, Status: d.Status, Components: []margo.ComponentStatus{}}
	k.Status.Error = clipped(d.Status.Error)
	keep, left, size := make([]bool, len(d.Components)), maxComponents, maxKept
	for _, failed := range []bool{true, false} { // failed components are the important ones
		for i, c := range d.Components {
			if (c.State == margo.StateFailed) != failed {
				continue
			}
			if takes := sizeOf(c); left > 0 && size >= takes {
				keep[i], left, size = true, left-1, size-takes
			}
		}
	}
	for i, c := range d.Components {
		if !keep[i] {
			k.Omitted++
			continue
		}
		k.Components = append(k.Components, margo.ComponentStatus{Name: cut(c.Name, maxWord), State: c.State, Error: clipped(c.Error)})
	}
	b, err := json.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("keep status: %w", err)
	}
	return b, nil
}

// sizeOf is the approximate stored size of a component.
func sizeOf(c margo.ComponentStatus) int {
	n := 64 + min(len(c.Name), maxWord)
	if c.Error != nil {
		n += min(len(c.Error.Code), maxWord) + min(len(c.Error.Source), maxWord) + min(len(c.Error.Message), maxMessage)
	}
	return n
}

func clipped(e *margo.StatusError) *margo.StatusError {
	if e == nil {
		return nil
	}
	return &margo.StatusError{Code: cut(e.Code, maxWord), Source: cut(e.Source, maxWord), Message: cut(e.Message, maxMessage)}
}

// cut shortens a text to a number of bytes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
