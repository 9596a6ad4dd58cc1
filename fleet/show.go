package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/printable"
)

// Alike is a set of devices with the same changes in a plan.
type Alike struct {
	Group   string         `json:"group,omitempty"` // that they are of; "": none
	Whole   bool           `json:"whole,omitempty"` // every device of the group that the plan is about
	Devices []string       `json:"devices"`
	Action  string         `json:"action"`
	Changes []Change       `json:"changes,omitempty"`
	Windows *WindowsChange `json:"windows,omitempty"`
	Cost    Cost           `json:"cost"` // of each
	Reasons []string       `json:"reasons,omitempty"`

	empty bool // they are to run nothing
}

// Alike gathers devices to which the plan does the same, those of one group together, in the order of the groups.
func (p *Plan) Alike() []*Alike {
	order, sizes := map[string]int{}, map[string]int{}
	for i, g := range p.c.Fleet.Groups {
		order[g.Name] = i + 1
	}
	byKey := map[string]*Alike{}
	var all []*Alike
	for _, d := range p.Devices {
		group := d.Group()
		sizes[group]++
		key := group + "\n" + d.Action
		if d.Action != Same {
			more, err := json.Marshal([]any{d.Changes, d.WindowsChange, d.Cost, d.Reasons, d.empty()})
			if err != nil {
				more = []byte(d.Device) // never: they are plain values
			}
			key += "\n" + string(more)
		}
		a := byKey[key]
		if a == nil {
			a = &Alike{Group: group, Action: d.Action, Changes: d.Changes, Windows: d.WindowsChange, Cost: d.Cost, Reasons: d.Reasons, empty: d.empty()}
			byKey[key] = a
			all = append(all, a)
		}
		a.Devices = append(a.Devices, string(d.Device))
	}
	rank := func(a *Alike) int {
		return slices.Index([]string{Publish, Same, Cannot}, a.Action)*(len(order)+2) + (order[a.Group]+len(order)+1)%(len(order)+2)
	}
	slices.SortStableFunc(all, func(a, b *Alike) int { return rank(a) - rank(b) })
	for _, a := range all {
		a.Whole = a.Group != "" && sizes[a.Group] == len(a.Devices)
	}
	return all
}

// empty reports whether the device is to run nothing.
func (d *DevicePlan) empty() bool { return d.Deployments() == 0 }

// Title names the devices for people.
func (a *Alike) Title() string {
	switch {
	case a.Whole && len(a.Devices) > 1:
		return fmt.Sprintf("%s (%s)", a.Group, printable.Counted(len(a.Devices), "device"))
	case len(a.Devices) == 1:
		return a.Devices[0]
	case a.Group != "":
		return fmt.Sprintf("%s: %s", a.Group, some(a.Devices))
	}
	return some(a.Devices)
}

// Lines describe the changes of the devices, for display.
func (a *Alike) Lines() []string {
	switch a.Action {
	case Same:
		return []string{"no change"}
	case Cannot:
		var out []string
		for _, r := range a.Reasons {
			out = append(out, "cannot: "+r)
		}
		return out
	}
	var out []string
	for _, c := range a.Changes {
		out = append(out, c.Lines()...)
	}
	switch {
	case len(a.Changes) > 0:
	case a.empty:
		out = append(out, "nothing to run any more")
	default:
		out = append(out, "what it runs stays")
	}
	if a.Windows != nil {
		out = append(out, a.Windows.String())
	}
	out = append(out, a.Cost.line(len(a.Devices)))
	for _, r := range a.Reasons {
		out = append(out, "note: "+r)
	}
	return out
}

// Lines describe the changes of the deployment, for display.
func (c Change) Lines() []string {
	head := c.Deployment + " "
	switch {
	case c.Change == Removed:
		head += c.Was + " removed"
	case c.Change == New:
		head += c.Version + " (new)"
	case c.Was != c.Version:
		head += c.Was + " → " + c.Version
	default:
		head += c.Version
	}
	out := []string{head}
	for _, x := range c.Components {
		if x.Was == x.Version && x.Was != "" {
			out = append(out, fmt.Sprintf("component %s %s: %s → %s, the tag was moved", x.Name, x.Version, printable.Digest(x.WasDigest), printable.Digest(x.Digest)))
		}
	}
	if c.Change == Changed {
		for _, x := range c.Parameters {
			out = append(out, fmt.Sprintf("parameter %s: %s → %s", x.Name, value(x.Was), value(x.Value)))
		}
	}
	for _, x := range c.Images {
		was, now := tagged(x.WasImage), tagged(x.Image)
		if was == now {
			now = ""
		}
		out = append(out, fmt.Sprintf("image of %s: %s%s → %s%s", x.Service, was, printable.Digest(x.WasDigest), now, printable.Digest(x.Digest)))
	}
	for _, x := range []struct {
		verb string
		all  []string
	}{{"starts", c.Starts}, {"restarts", c.Restarts}, {"stops", c.Stops}, {"keeps", c.Keeps}} {
		if len(x.all) > 0 {
			out = append(out, x.verb+" "+strings.Join(x.all, ", "))
		}
	}
	if c.Note != "" {
		out = append(out, c.Note)
	}
	return out
}

// tagged is the last name of an image with its tag, and a space: "caddy:2.10 "; "" when it is not known.
func tagged(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if name == "" {
		return ""
	}
	return path.Base(name) + " "
}

// line describes the bytes that a device loads, and those of all devices together.
func (c Cost) line(devices int) string {
	if c.Blobs == 0 {
		return "nothing to load"
	}
	atMost, each, kept := "", "", ""
	if c.AtMost {
		atMost = "at most "
	}
	if devices > 1 {
		each = fmt.Sprintf(" per device, %s in all", Bytes(c.Bytes*int64(devices)))
	}
	if c.Kept > 0 {
		kept = fmt.Sprintf(" (%d of %s there already)", c.Kept, printable.Counted(c.Kept+c.Blobs, "blob"))
	}
	return atMost + Bytes(c.Bytes) + " to load" + each + kept
}

// Bytes is a number of bytes for people.
func Bytes(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < 3 {
		v, i = v/unit, i+1
	}
	return fmt.Sprintf("%.1f %s", v, []string{"kB", "MB", "GB", "TB"}[i])
}

// shown is a plan for display: equal changes are one line, for any number of groups.
func (p *Plan) shown() []*Alike {
	var out []*Alike
	var same *Alike
	var groups []string
	for _, a := range p.Alike() {
		if a.Action != Same {
			out = append(out, a)
			continue
		}
		if same == nil {
			same = &Alike{Action: Same}
			out = append(out, same)
		}
		if same.Devices = append(same.Devices, a.Devices...); a.Whole {
			groups = append(groups, a.Group)
		} else {
			groups = append(groups, a.Devices...)
		}
	}
	if same != nil && len(same.Devices) > 1 {
		same.Group, same.Whole = some(groups), true
	}
	return out
}

// Text writes the plan for people.
func (p *Plan) Text(w io.Writer) {
	p.Details(w)
	for _, l := range WaveLines(p.Waves()) {
		fmt.Fprintln(w, l)
	}
	fmt.Fprintln(w, p.Summary())
}

// Details writes the changes by device, for display.
func (p *Plan) Details(w io.Writer) {
	const widest = 36
	all := p.shown()
	width := 0
	for _, a := range all {
		width = max(width, min(len([]rune(a.Title())), widest))
	}
	for _, a := range all {
		title := a.Title()
		for i, l := range a.Lines() {
			if i == 0 && len([]rune(title)) > width {
				fmt.Fprintln(w, title)
				title = ""
			}
			fmt.Fprintf(w, "%-*s  %s\n", width, title, l)
			title = ""
		}
	}
	if len(all) > 0 {
		fmt.Fprintln(w)
	}
}

// Summary is the plan in one line.
func (p *Plan) Summary() string {
	change, cannot := p.Count(Publish), p.Count(Cannot)
	var load int64
	for _, d := range p.Devices {
		if d.Action == Publish {
			load += d.Cost.Bytes
		}
	}
	out := fmt.Sprintf("%s of %s would change", printable.Number(change), printable.Counted(len(p.Devices), "device"))
	if load > 0 {
		out += fmt.Sprintf(", %s to load in all", Bytes(load))
	}
	if change > 0 && load == 0 {
		out += ", nothing to load"
	}
	if cannot > 0 {
		out += fmt.Sprintf("; %s cannot", printable.Number(cannot))
	}
	return out + ". Nothing has been pushed."
}

// Markdown writes the plan for a merge request.
func (p *Plan) Markdown(w io.Writer) {
	cell := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace
	fmt.Fprintf(w, "### Fleet %s\n\n%s\n\n", p.Fleet, p.Summary())
	waves := WaveLines(p.Waves())
	for _, l := range waves {
		fmt.Fprintf(w, "- %s\n", l)
	}
	if len(waves) > 0 {
		fmt.Fprintln(w)
	}
	all := p.shown()
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "| devices | what happens |\n|---|---|\n")
	for _, a := range all {
		lines := a.Lines()
		for i, l := range lines {
			lines[i] = cell(l)
		}
		fmt.Fprintf(w, "| %s | %s |\n", cell(a.Title()), strings.Join(lines, "<br>"))
	}
}
