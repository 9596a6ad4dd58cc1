package panel

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// t is a text of the page.
func (p *page) t(key string, values ...any) g.Node { return g.Text(p.Messages.Text(key, values...)) }

func dim(text string) g.Node { return h.Span(h.Class("dim"), g.Text(text)) }

// dimmed is a space and a dim text; nothing for "".
func dimmed(text string) g.Node {
	return g.If(text != "", g.Group{g.Text(" "), dim(text)})
}

// document is a whole page, around what is in its body.
func (p *page) document(c content, body g.Node) g.Node {
	return h.Doctype(h.HTML(h.Lang(p.Messages.Lang),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.TitleEl(p.t("title", "device", c.Device)),
			h.Link(h.Rel("icon"), h.Href("/static/icon.svg"), h.Type("image/svg+xml")),
			h.Link(h.Rel("stylesheet"), h.Href("/static/page.css")),
			g.If(c.Overview, g.Group{
				h.Script(h.Src("/static/page.js"), h.Defer()),
				h.NoScript(h.Meta(g.Attr("http-equiv", "refresh"), h.Content("15;url=/?renew"))),
			}),
		),
		h.Body(
			h.Header(
				h.H1(h.A(h.Href("/"), h.Img(h.Src("/static/icon.svg"), h.Alt(""), h.Width("22"), h.Height("22")), g.Text(c.Device))),
				g.If(c.Person != "", h.Form(h.Method("post"), h.Action("/logout"), dim(c.Person), g.Text(" "), h.Button(h.ID("logout"), p.t("logout")))),
				g.If(c.Person == "" && p.PINFile != "" && c.Overview, h.A(h.Class("button"), h.ID("login"), h.Href("/login"), p.t("login"))),
			),
			g.Iff(c.Flash != nil, func() g.Node { return c.Flash.node() }),
			h.Main(body),
		),
	))
}

func (f *flash) node() g.Node {
	class, role := "flash", "status"
	if f.Bad {
		class, role = "flash bad", "alert"
	}
	return h.P(h.Class(class), h.ID("flash"), h.Role(role), g.Text(f.Text), g.If(f.Detail != "", g.Group{h.Br(), dim(f.Detail)}))
}

func (p *page) loginForm() g.Node {
	return h.Form(h.Class("card"), h.Method("post"), h.Action("/login"),
		h.H2(p.t("login.who")),
		h.Label(h.For("name"), p.t("login.name")),
		h.Input(h.ID("name"), h.Name("name"), h.MaxLength("64"), h.Required(), h.AutoFocus(), h.AutoComplete("username"), g.Attr("autocapitalize", "none"), g.Attr("spellcheck", "false")),
		h.Label(h.For("pin"), p.t("login.pin")),
		h.Input(h.ID("pin"), h.Name("pin"), h.Type("password"), g.Attr("inputmode", "numeric"), h.MaxLength("72"), h.Required(), h.AutoComplete("current-password")),
		h.Button(h.Class("main"), h.ID("submit"), p.t("login")),
	)
}

func (p *page) live(o status.Status, person string, changes []status.Change) g.Node {
	var waits, begun []status.Change
	for _, c := range changes {
		if c.Begun.IsZero() {
			waits = append(waits, c)
		} else {
			begun = append(begun, c)
		}
	}
	return g.Group{
		h.ID("live"),
		h.Section(h.Class("card"),
			h.Dl(
				h.Dt(p.t("generation")), h.Dd(p.generations(o)),
				h.Dt(p.t("checked")), h.Dd(g.If(o.CheckedAt.IsZero(), p.t("checked.never")), g.Text(p.when(o.CheckedAt))),
				g.If(!o.NextCheck.IsZero(), g.Group{h.Dt(p.t("next")), h.Dd(g.Text(p.when(o.NextCheck)))}),
			),
			g.Iff(o.Hold != nil, func() g.Node {
				return h.P(h.Class("wait"), h.ID("hold"), p.held(o.Hold))
			}),
			g.If(person != "", h.P(h.Class("actions"),
				g.If(o.Hold != nil, h.A(h.Class("button"), h.ID("release"), h.Href("/release"), p.t("release"))),
				g.If(o.Hold == nil, h.A(h.Class("button"), h.ID("rollback"), h.Href("/rollback"), p.t("rollback"))),
			)),
		),
		h.Section(h.Aria("labelledby", "h-changes"),
			h.H2(h.ID("h-changes"), p.t("changes")),
			g.Map(begun, func(c status.Change) g.Node { return h.P(h.Class("card"), p.t("changes.begun", "name", c.Deployment)) }),
			g.Map(waits, func(c status.Change) g.Node {
				return h.Article(h.Class("card change"), h.H3(g.Text(c.Deployment)), p.effects(c), g.If(person != "", h.P(h.Class("actions"),
					h.A(h.Class("button main decide"), h.Href("/change/"+url.PathEscape(c.ID.String())), h.Aria("label", p.Messages.Text("change.title", "name", c.Deployment)+": "+p.Messages.Text("decide")), p.t("decide")))))
			}),
			g.If(len(waits)+len(begun) == 0, h.P(h.Class("card dim"), p.t("changes.none"))),
		),
		g.If(len(o.Problems) > 0, h.Section(h.Aria("labelledby", "h-problems"),
			h.H2(h.ID("h-problems"), p.t("problems")),
			h.Ul(h.Class("card problems"), g.Map(o.Problems, func(x status.Problem) g.Node { return h.Li(g.Text(x.Message+" "), h.Code(g.Text(string(x.Code)))) })),
		)),
		h.Section(h.Aria("labelledby", "h-apps"),
			h.H2(h.ID("h-apps"), p.t("deployments")),
			g.Map(o.Deployments, p.deployment),
			g.If(len(o.Deployments) == 0, h.P(h.Class("card dim"), p.t("deployments.none"))),
		),
	}
}

// generations are what runs, the phase, and the generations that are next and that ran last where they differ.
func (p *page) generations(s status.Status) g.Node {
	other := func(key string, x *status.Generation) g.Node {
		return g.Iff(x != nil && s.Running != nil && x.Generation != s.Running.Generation, func() g.Node {
			return dimmed(p.Messages.Text(key, "generation", x.Generation))
		})
	}
	running := g.Text("–")
	if s.Running != nil {
		running = h.B(g.Text(strconv.FormatUint(s.Running.Generation, 10)))
	}
	return g.Group{
		running, g.Text(" "), h.Span(h.Class("badge phase"), g.Text(p.Messages.named("phase", s.Phase))),
		other("generation.next", s.Accepted), other("generation.complete", s.Committed),
	}
}

func (p *page) held(x *status.Hold) g.Node {
	return g.Group{p.t("held", "name", x.By, "generation", x.Generation), dimmed(x.Reason)}
}

func (p *page) deployment(d status.Deployment) g.Node {
	name := func(name, revision string) g.Node {
		return g.Group{h.B(g.Text(name)), g.Text(" " + revision + " ")}
	}
	runs := g.Group{h.Ul(h.Class("components"), g.Map(d.Components, func(c status.Component) g.Node {
		return h.Li(name(c.Name, c.Revision), p.containers(c.Services), failure(c))
	}))}
	if len(d.Running) > 0 {
		runs = g.Group{h.Dl(
			h.Dt(p.t("deployments.runs")), h.Dd(h.Class("runs"), g.Map(d.Running, func(c status.RunningComponent) g.Node {
				return h.Div(name(c.Name, c.Revision), p.containers(c.Services))
			})),
			h.Dt(p.t("deployments.waits")), h.Dd(g.Map(d.Components, func(c status.Component) g.Node {
				return h.Div(g.Text(c.Name+" "+c.Revision), failure(c))
			})),
		)}
	}
	return h.Article(h.Class("card"),
		h.H3(g.Text(d.Name+" "), h.Span(h.Class("badge "+string(d.State)), g.Text(p.Messages.named("state", d.State)))),
		g.Iff(d.Refused != nil, func() g.Node {
			return h.P(h.Class("wait"), p.t("refused", "generation", d.Refused.Generation, "message", d.Refused.Message))
		}),
		runs,
	)
}

func (p *page) containers(services []status.Service) g.Node {
	n := runs(services)
	return dim(p.Messages.Text("containers", "running", n.Running, "all", n.All))
}

func failure(c status.Component) g.Node {
	return g.Iff(c.State != margo.StatePending && c.Error != nil, func() g.Node {
		return g.Group{h.Br(), h.Span(h.Class("error"), g.Text(c.Error.Message))}
	})
}

// effects are what a change brings, and what it waits for.
func (p *page) effects(c status.Change) g.Node {
	var what g.Group
	if c.Trust != nil {
		what = g.Group{
			h.Dt(p.t("trust.version")), h.Dd(g.Text(strconv.FormatUint(c.Trust.Version, 10))),
			h.Dt(p.t("trust.signed")), h.Dd(g.Text(strings.Join(c.Trust.SignedBy, ", "))),
			h.Dt(p.t("change.kinds")), h.Dd(g.Map(c.Trust.Changes, func(s string) g.Node { return h.Div(g.Text(s)) })),
		}
	} else {
		var kinds []string
		for _, k := range c.Kinds {
			kinds = append(kinds, p.Messages.named("kind", k))
		}
		load := p.Messages.Text("change.loaded")
		if c.Bytes > 0 {
			load = printable.Bytes(c.Bytes)
		}
		what = g.Group{
			h.Dt(p.t("generation")), h.Dd(g.Text(strconv.FormatUint(c.Generation, 10))),
			h.Dt(p.t("change.kinds")), h.Dd(g.Text(strings.Join(kinds, ", "))),
			g.If(len(c.Components) > 0, g.Group{h.Dt(p.t("change.versions")), h.Dd(g.Map(c.Components, func(x status.ComponentChange) g.Node {
				return p.fromTo(x.Component, x.From, x.To)
			}))}),
			g.If(len(c.Images) > 0, g.Group{h.Dt(p.t("change.images")), h.Dd(g.Map(c.Images, func(x status.ImageChange) g.Node {
				name := x.Component
				if x.Service != x.Component {
					name += "/" + x.Service
				}
				return p.fromTo(name, short(x.From, x.FromTag, x.ToTag), short(x.To, x.ToTag, x.FromTag))
			}))}),
			h.Dt(p.t("change.load")), h.Dd(g.Text(load)),
			h.Dt(p.t("change.restarts")), h.Dd(p.t("change.restarts.of", "restarts", c.Restarts, "containers", c.Containers)),
		}
	}
	why := p.why(c)
	return h.Dl(
		what,
		h.Dt(p.t("change.waits")), h.Dd(h.Class("why"), g.Text(why.Text), dimmed(why.Detail)),
		g.If(!c.Since.IsZero(), g.Group{h.Dt(p.t("change.since")), h.Dd(g.Text(p.when(c.Since)+" "), dim("("+p.lasts(c.Since)+")"))}),
	)
}

// fromTo shows a change of a version or an image; "": there was none before, or there is none after.
func (p *page) fromTo(name, from, to string) g.Node {
	if from == "" {
		from = p.Messages.Text("change.new")
	}
	if to == "" {
		to = p.Messages.Text("change.gone")
	}
	return h.Div(g.Text(fmt.Sprintf("%s: %s → ", name, from)), h.B(g.Text(to)))
}

func hidden(name, value string) g.Node {
	return h.Input(h.Type("hidden"), h.Name(name), h.Value(value))
}

// reasonField is where a person writes why; label is the key of its text.
func (p *page) reasonField(id, label string, required bool) g.Node {
	return g.Group{
		h.Label(h.For(id), p.t(label)),
		h.Input(h.ID(id), h.Name("reason"), h.MaxLength("200"), g.If(required, h.Required()), h.AutoComplete("off")),
	}
}

// actions are a link back to the overview, and the button that does it.
func (p *page) actions(class, label string) g.Node {
	return h.P(h.Class("actions"), h.A(h.Class("button"), h.ID("cancel"), h.Href("/"), p.t("cancel")), g.Text(" "), h.Button(h.Class(class), h.ID("submit"), p.t(label)))
}

func (p *page) choices(c status.Change) g.Node {
	now, zone, seen := p.Now(), p.Now().Format("MST"), ""
	if c.Decision != nil {
		seen = c.Decision.At.Format(time.RFC3339Nano) // see [agent.DecisionRequest]
	}
	form := func(title string, rest ...g.Node) g.Node {
		return h.Form(h.Class("card"), h.Method("post"), h.H3(p.t(title)), hidden("deployment", c.DeploymentID), hidden("seen", seen), g.Group(rest))
	}
	verdict := func(class, id, value string) g.Node {
		return h.Button(g.If(class != "", h.Class(class)), h.ID(id), h.Name("verdict"), h.Value(value), p.t(id))
	}
	choice := func(value string, text g.Node, first bool) g.Node {
		return h.Label(h.Class("choice"), h.Input(h.Type("radio"), h.Name("for"), h.Value(value), g.If(first, h.Checked())), g.Text(" "), text)
	}
	var spans g.Group
	for i, d := range postponements {
		spans = append(spans, choice(d, g.Text(p.Messages.named("postpone", d)), i == 0))
	}
	return g.Group{
		h.H2(p.t("change.title", "name", c.Deployment)),
		h.Section(h.Class("card"), p.effects(c), h.P(h.Class("actions"), h.A(h.Class("button"), h.ID("cancel"), h.Href("/"), p.t("cancel")))),
		h.Div(h.Class("choices"),
			form("approve", h.P(h.Class("dim"), p.t("approve.about")), verdict("main", "approve", "approved")),
			form("postpone", spans, choice("until", p.t("postpone.until", "zone", zone), false),
				h.Input(h.Type("datetime-local"), h.Name("until"), h.Min(now.Format(untilLayout)), h.Max(now.Add(agent.MaxPostponed).Format(untilLayout)),
					h.Aria("label", p.Messages.Text("postpone.until", "zone", zone))),
				p.reasonField("later", "reason.optional", false), verdict("", "postpone", "postponed")),
			form("reject", h.P(h.Class("dim"), p.t("reject.about")), p.reasonField("reason", "reason", true), verdict("danger", "reject", "rejected")),
		),
	}
}

func (p *page) rollbackForm(state string) g.Node {
	return h.Form(h.Class("card"), h.Method("post"),
		h.H2(p.t("rollback.title")), h.P(p.t("rollback.about")), hidden("state", state), p.reasonField("reason", "reason", true), p.actions("danger", "rollback"))
}

func (p *page) releaseForm(hold *status.Hold) g.Node {
	return h.Form(h.Class("card"), h.Method("post"), h.H2(p.t("release.title")),
		g.Iff(hold != nil, func() g.Node {
			return g.Group{h.P(p.held(hold)), h.P(p.t("release.about", "generation", hold.Generation))}
		}),
		p.actions("main", "release"))
}
