package web

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet/status"
)

// document is the whole page.
func (c *content) document() g.Node {
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.TitleEl(g.Text("Longshore fleet")),
			h.Link(h.Rel("icon"), h.Href("static/icon.svg"), h.Type("image/svg+xml")),
			h.Link(h.Rel("stylesheet"), h.Href("static/page.css")),
			h.Script(h.Src("static/page.js"), h.Defer()),
			h.NoScript(h.Meta(g.Attr("http-equiv", "refresh"), h.Content("20"))),
		),
		h.Body(
			h.Header(
				h.H1(h.Img(h.Src("static/icon.svg"), h.Alt(""), h.Width("22"), h.Height("22")), g.Text("Longshore fleet")),
				h.Span(h.ID("live"), h.Class("live"), g.Attr("data-state", "off"), h.Title("renewed when a device reports"), g.Text("static")),
			),
			h.Main(h.ID("fleet"), c.fragment()),
			h.Footer(g.Textf("longshore-fleet %s · ", c.Version), link("fleet/v1/devices", "devices"), g.Text(" and "), link("fleet/v1/deployments", "deployments"),
				g.Text(" as JSON · "), link("metrics", "metrics")),
		),
	))
}

// fragment is what changes when devices report.
func (c *content) fragment() g.Node {
	return g.Group{
		c.tiles(),
		g.If(c.Problems > 0, c.problems()),
		h.Section(h.Aria("label", "Devices"),
			g.Map(c.Devices, c.device),
			g.If(len(c.Devices) == 0, h.P(h.Class("empty"), g.Text("No device has reported yet. Make a token with "),
				h.Code(g.Text("longshore-fleet token create --device ID")), g.Text(" and give it to the agent of the device."))),
			g.If(c.After != "" || c.Next != "", h.Nav(
				g.If(c.After != "", link("?", "first page")), g.Text(" "), g.If(c.Next != "", link(c.Next, "next page")),
			)),
		),
	}
}

func (c *content) tiles() g.Node {
	tile := func(n int, class, text string) g.Node {
		outer := "tile"
		if n == 0 {
			outer = "tile zero"
		}
		return h.Div(h.Class(outer), h.B(h.Class(class), g.Text(strconv.Itoa(n))), h.Span(g.Text(text)))
	}
	alarm := func(n int, text string) g.Node {
		class := ""
		if n > 0 {
			class = string(margo.StateFailed)
		}
		return tile(n, class, text)
	}
	devices := "devices"
	if c.Summary.Devices == 1 {
		devices = "device"
	}
	return h.Section(h.Class("tiles"), h.Aria("label", "Summary"),
		h.Div(h.Class("tile"), h.B(g.Text(strconv.Itoa(c.Summary.Devices))), h.Span(g.Text(devices))),
		g.Map(order(), func(s margo.State) g.Node { return tile(c.Summary.Deployments[s], string(s), string(s)) }),
		alarm(c.Summary.Offline, "offline"),
		alarm(c.Summary.Alarms, "refusing"),
	)
}

func (c *content) problems() g.Node {
	of := func(id string) g.Node { return h.B(link(c.Link(id), id)) }
	return h.Section(h.Class("problems"), h.Aria("label", "Problems"),
		h.H2(g.Text("Problems")),
		h.Ul(
			g.Map(c.Offline, func(d status.Device) g.Node {
				return h.Li(of(d.ID), g.Text(" is offline "), dim(
					g.Text("since "), h.Time(h.DateTime(stamp(d.OfflineSince)), g.Text(utc(d.OfflineSince))), g.Textf(", %s: what it runs now is not known", c.ago(d.OfflineSince))))
			}),
			g.Map(c.Refusing, func(d status.Device) g.Node {
				what, runs, since := "the state", "nothing runs", ""
				if d.Refused.Generation > 0 {
					what = fmt.Sprintf("generation %d", d.Refused.Generation)
				}
				if d.RunningGeneration > 0 {
					runs = fmt.Sprintf("generation %d runs on", d.RunningGeneration)
				}
				if !d.Refused.Since.IsZero() {
					since = fmt.Sprintf("for %s; ", c.ago(d.Refused.Since))
				}
				return h.Li(of(d.ID), g.Textf(" refuses %s published for it: %s ", what, d.Refused.Message), code(d.Refused.Code), g.Text(" "), dim(g.Text(since+runs)))
			}),
			g.Map(c.Failed, func(d status.Deployment) g.Node {
				return h.Li(of(d.DeviceID), g.Textf(" failed %s", name(d)),
					g.Iff(d.Error != nil, func() g.Node { return g.Group{g.Textf(": %s ", d.Error.Message), code(d.Error.Code)} }),
					g.Text(" "), dim(g.Textf("for %s", c.ago(d.Since))))
			}),
			g.If(c.Unshown > 0, h.Li(h.Class("dim"), g.Textf("and %d more: ", c.Unshown), link("fleet/v1/devices?offline=true", "offline"), g.Text(", "),
				link("fleet/v1/devices?refusing=true", "refusing"), g.Text(", "), link("fleet/v1/deployments?state=failed", "failed"))),
		),
	)
}

func (c *content) device(d device) g.Node {
	class, about := "device", "has not reported its capabilities"
	if d.Refused != nil || !d.OfflineSince.IsZero() {
		class = "device bad"
	}
	if d.Registered {
		about = d.Vendor + " " + d.ModelNumber
	}
	stale := "what runs has expired, or is not known to be the current state"
	if !d.StaleSince.IsZero() {
		stale += ", since " + utc(d.StaleSince)
	}
	return h.Article(h.Class(class), h.ID(d.ID),
		h.Div(h.Class("head"),
			h.H3(g.Text(d.ID)), g.Text(" "), dim(g.Text(about)), g.Text(" "),
			g.If(!d.OfflineSince.IsZero(), badge("failed", "", "offline since "+utc(d.OfflineSince))),
			g.If(d.Stale, badge("warn", stale, "stale")),
			g.If(len(d.Insecure) > 0, badge("warn", strings.Join(d.Insecure, ", "), "insecure")),
			g.If(d.ReportsLost > 0, badge("warn", "", fmt.Sprintf("%d reports lost", d.ReportsLost))),
			h.Span(h.Class("facts"),
				g.If(d.AcceptedGeneration > 0, g.Group{h.Span(h.Title(d.Digest), g.Text("generation "), number(d.RunningGeneration),
					g.If(d.RunningGeneration != d.AcceptedGeneration, g.Group{g.Text(" → "), number(d.AcceptedGeneration)})), g.Text(" ")}),
				g.If(d.AgentVersion != "", g.Group{h.Span(g.Text("agent " + d.AgentVersion)), g.Text(" ")}),
				h.Span(h.Title(utc(d.LastHeard)), g.Text("heard "), h.B(g.Text(c.ago(d.LastHeard))), g.Text(" ago")),
			),
		),
		c.notices(d.Extra),
		c.deployments(d),
	)
}

// notices are what a device says beside its deployments: what waits, what it does, what it refuses, and possible attacks.
func (c *content) notices(x status.Extra) g.Node {
	wait := func(in ...g.Node) g.Node { return h.P(h.Class("wait"), g.Group(in)) }
	return g.Group{
		g.Iff(x.Hold != nil, func() g.Node {
			reason := ""
			if x.Hold.Reason != "" {
				reason = ": " + x.Hold.Reason
			}
			return wait(g.Textf("%s keeps it at generation %d%s ", x.Hold.By, x.Hold.Generation, reason), dim(g.Textf("for %s", c.ago(x.Hold.At))))
		}),
		g.Map(x.Waiting, func(w artifacts.CurrentWait) g.Node { return wait(g.Textf("%s: %s ", w.Name, w.Message), code(w.Code)) }),
		g.Map(x.Unreadable, func(s string) g.Node { return wait(g.Text("what it reports as "), code(s), g.Text(" cannot be read")) }),
		g.Iff(x.Decided() != nil, func() g.Node {
			d := x.Decided()
			return h.P(h.Class("dim"), h.Title(string(d.Digest)), g.Text(d.String()))
		}),
		g.Iff(x.Progress.Uncommitted(), func() g.Node { return wait(c.progress(x.Progress)) }),
		g.Iff(x.Refused != nil, func() g.Node {
			return h.P(h.Class("error"), g.Text("refuses "+generation(x.Refused.Generation)), h.Code(h.Title(x.Refused.Digest), g.Text(short(x.Refused.Digest))), g.Textf(": %s ", x.Refused.Message), code(x.Refused.Code))
		}),
		g.Map(x.Security, func(s status.ExtraSecurity) g.Node {
			text := " " + generation(s.Generation)
			if s.Count > 1 {
				text += fmt.Sprintf("%d times ", s.Count)
			}
			return h.P(h.Class("error"), g.Text("security: "), h.Code(h.Title(s.Digest), g.Text(s.Code)), g.Textf("%s, last %s ago ", strings.TrimRight(text, " "), c.ago(s.Last)), dim(g.Text(s.Message)))
		}),
	}
}

func (c *content) progress(p *artifacts.CurrentProgress) g.Node {
	more := ""
	if s := p.Loaded(); s != "" {
		more += ", " + s
	}
	if p.Attempt > 1 {
		more += fmt.Sprintf(", boot %d", p.Attempt)
	}
	if !p.Until.IsZero() {
		more += ", until " + utc(p.Until)
	}
	return g.Group{
		badge("phase", "", p.Phase), g.Text(" " + generation(p.Generation)),
		dim(g.If(!p.Since.IsZero(), h.Time(h.DateTime(stamp(p.Since)), h.Title(utc(p.Since)), g.Textf("for %s", c.ago(p.Since)))), g.Text(more)),
		g.If(p.Message != "", g.Text(" "+p.Message)), g.If(p.Code != "", g.Group{g.Text(" "), code(p.Code)}),
	}
}

func (c *content) deployments(d device) g.Node {
	all, some := "", "deployments"
	if len(d.List) > 0 {
		all, some = "and ", "more deployments"
	}
	if d.Unshown == 1 {
		some = strings.TrimSuffix(some, "s")
	}
	return g.Group{
		g.If(len(d.List) > 0, h.Table(
			h.THead(h.Tr(h.Th(g.Text("deployment")), h.Th(g.Text("state")), h.Th(g.Text("since")), h.Th(g.Text("components")))),
			h.TBody(g.Map(d.List, func(x status.Deployment) g.Node {
				return h.Tr(
					h.Td(g.Text(name(x)), h.Br(), h.Code(h.Class("dim"), h.Title(x.DeploymentID), g.Text(short(x.DeploymentID)))),
					h.Td(badge(string(x.State), "", string(x.State))),
					h.Td(h.Title(utc(x.Since)), g.Text(c.ago(x.Since))),
					h.Td(components(x)),
				)
			})),
		)),
		g.If(len(d.List)+d.Unshown == 0, h.P(h.Class("dim empty"), g.Text("nothing is deployed"))),
		g.If(d.Unshown > 0, h.P(h.Class("dim empty"), g.Textf("%s%d %s: ", all, d.Unshown, some), link("fleet/v1/deployments?"+url.Values{"device": {d.ID}}.Encode(), "all as JSON"))),
	}
}

func components(x status.Deployment) g.Node {
	failure := func(e *margo.StatusError, of string) g.Node {
		return g.Iff(e != nil, func() g.Node {
			return h.P(h.Class("error"), g.If(of != "", g.Group{h.B(g.Text(of)), g.Text(" ")}), g.Text(e.Message+" "), code(e.Code))
		})
	}
	return g.Group{
		g.Map(x.Components, func(c margo.ComponentStatus) g.Node {
			title := string(c.State)
			if c.Error != nil {
				title += ": " + c.Error.Message
			}
			return g.Group{h.Span(h.Class("component"), h.Title(title), h.I(h.Class("dot "+string(c.State))), g.Text(c.Name)), g.Text(" ")}
		}),
		g.If(!componentError(x), failure(x.Error, "")),
		g.Map(x.Components, func(c margo.ComponentStatus) g.Node {
			return g.Iff(c.Error != nil, func() g.Node { return failure(c.Error, c.Error.Source) })
		}),
		g.If(x.ComponentsOmitted > 0, dim(g.Textf("and %d more", x.ComponentsOmitted))),
	}
}

func (c *content) ago(t time.Time) string { return ago(c.Now, t) }

func link(to, text string) g.Node { return h.A(h.Href(to), g.Text(text)) }

func dim(in ...g.Node) g.Node { return h.Span(h.Class("dim"), g.Group(in)) }

func code(text string) g.Node { return h.Code(g.Text(text)) }

func number(n uint64) g.Node { return h.B(g.Text(strconv.FormatUint(n, 10))) }

func badge(class, title, text string) g.Node {
	return g.Group{h.Span(h.Class("badge "+class), g.If(title != "", h.Title(title)), g.Text(text)), g.If(class != "phase", g.Text(" "))}
}

// generation is "generation 3 "; "": it is not known.
func generation(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("generation %d ", n)
}

// name is that of a deployment for people: its components.
func name(d status.Deployment) string {
	var names []string
	for _, c := range d.Components {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return short(d.DeploymentID)
	}
	return strings.Join(names, ", ")
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// short cuts digests and identifiers to what people compare.
func short(s string) string {
	if len(s) == 36 && !strings.Contains(s, ":") {
		return s[:8]
	}
	return printable.Digest(s)
}
