package panel

import (
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
)

func (p *page) overview(w http.ResponseWriter, r *http.Request, s *session) {
	all, err := p.Device.Changes(r.Context())
	if err != nil {
		p.unavailable(w, err)
		return
	}
	c := content{Overview: true}
	if s != nil {
		c.Person, c.Flash = s.person.name, s.flash
	}
	p.show(w, http.StatusOK, c, p.live(p.Device.Status().WithoutOutput(), c.Person, all))
}

// when formats a time as the device's clock on the wall has it; "": zero.
func (p *page) when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(p.Now().Location()).Format("2006-01-02 15:04:05 MST")
}

// lasts is how long something has been so, in its two largest units.
func (p *page) lasts(since time.Time) string {
	switch d := max(0, p.Now().Sub(since)); {
	case d >= 24*time.Hour:
		return p.Messages.Text("lasts.days", "days", int(d/(24*time.Hour)), "hours", int(d%(24*time.Hour)/time.Hour))
	case d >= time.Hour:
		return p.Messages.Text("lasts.hours", "hours", int(d/time.Hour), "minutes", int(d%time.Hour/time.Minute))
	case d >= time.Minute:
		return p.Messages.Text("lasts.minutes", "minutes", int(d/time.Minute))
	default:
		return p.Messages.Text("lasts.seconds", "seconds", int(d/time.Second))
	}
}

// why says what a change waits for. What the agent says is for people with a shell: it is shown where it says more.
func (p *page) why(c status.Change) (out struct{ Text, Detail string }) {
	w := c.Waiting
	if w == nil {
		out.Text = p.Messages.Text("waits.nothing")
		return out
	}
	switch {
	case w.Code == codes.ApprovalNeeded && w.Until.IsZero():
		out.Text = p.Messages.Text("waits.approval")
	case w.Code == codes.ApprovalNeeded:
		out.Text = p.Messages.Text("waits.automatic", "time", p.when(w.Until))
	case w.Code == codes.ChangeRejected && c.Decision != nil:
		out.Text, out.Detail = p.Messages.Text("waits.rejected", "name", c.Decision.By), c.Decision.Reason
	case w.Code == codes.ChangePostponed && c.Decision != nil:
		out.Text, out.Detail = p.Messages.Text("waits.postponed", "name", c.Decision.By, "time", p.when(w.Until)), c.Decision.Reason
	case w.Code == codes.UpdateLocked:
		out.Text, out.Detail = p.Messages.Text("waits.lock"), w.Message
	case w.Code == codes.OutsideWindow && !w.Until.IsZero():
		out.Text = p.Messages.Text("waits.window", "time", p.when(w.Until))
	default:
		out.Text, out.Detail = string(w.Code), w.Message
	}
	return out
}

// short is an image as people name it: its tag, or the beginning of its digest; both where the other image has the same tag.
func short(image, tag, otherTag string) string {
	_, hex, ok := strings.Cut(image, "@sha256:")
	switch {
	case !ok:
		return image
	case tag == "":
		return hex[:min(12, len(hex))]
	case tag == otherTag:
		return tag + " (" + hex[:min(12, len(hex))] + ")"
	}
	return tag
}

// runs counts the containers that run, and all.
func runs(services []status.Service) (out struct{ Running, All int }) {
	for _, s := range services {
		if out.All++; s.Status == workload.Running {
			out.Running++
		}
	}
	return out
}
