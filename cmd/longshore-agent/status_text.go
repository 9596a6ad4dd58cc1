package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// writeStatus writes a status for people: problems first, then what runs, then what comes next.
func writeStatus(w io.Writer, s *status.Status) {
	styled := func(style, text string) {
		if !colour(w) {
			fmt.Fprint(w, text)
			return
		}
		fmt.Fprint(printable.Raw(w), style) // ours, in between what may be foreign
		fmt.Fprint(w, text)
		fmt.Fprint(printable.Raw(w), "\x1b[0m")
	}
	const bold, red = "\x1b[1m", "\x1b[31m"
	styled(bold, string(s.Device))
	fmt.Fprintf(w, "   %s   %s%s\n", from(s), s.Phase, checked(s))
	if g := s.Running; g != nil {
		fmt.Fprintf(w, "generation %d (%s)%s, accepted %s ago\n", g.Generation, printable.Digest(g.Digest), signedBy(g), ago(s.Now.Sub(g.AcceptedAt)))
		if g.Repeats != "" {
			fmt.Fprintf(w, "it repeats the content of %s\n", printable.Digest(g.Repeats))
		}
		if f := s.Freshness; f != nil && !f.Stale {
			fmt.Fprintf(w, "fresh until %s, says %s\n", f.NotAfter.UTC().Format(time.RFC3339), f.By)
		}
	} else if s.Accepted == nil {
		fmt.Fprintln(w, "nothing was accepted yet")
	}
	if a := s.Accepted; a != nil && (s.Running == nil || a.Digest != s.Running.Digest) {
		doing := ""
		if h := s.Hold; h != nil {
			doing = ", not applied: " + h.By + " keeps generation " + fmt.Sprint(h.Generation)
		}
		fmt.Fprintf(w, "generation %d (%s)%s: accepted%s\n", a.Generation, printable.Digest(a.Digest), signedBy(a), doing)
	}
	if line := progress(s); line != "" {
		fmt.Fprintln(w, line)
	}
	if n := len(s.Security); n > 0 {
		last := s.Security[n-1]
		fmt.Fprintf(w, "security events: %d, the last %s ago (%s): longshore-agent events --kind security\n", n, ago(s.Now.Sub(last.Last)), last.Code)
	}
	if t := s.Trust; t != nil && t.Version > 0 {
		fmt.Fprintf(w, "trust policy version %d (%s)%s\n", t.Version, printable.Digest(t.Digest), trusted(s))
	}
	if len(s.Problems) > 0 {
		fmt.Fprintln(w)
	}
	for _, p := range s.Problems {
		since := ""
		if !p.Since.IsZero() {
			since = " for " + ago(s.Now.Sub(p.Since))
		}
		first, more := sentence(p.Message)
		styled(red, "!")
		fmt.Fprintf(w, " %s (%s%s)\n", first, p.Code, since)
		if more != "" {
			fmt.Fprintf(w, "  %s\n", strings.ReplaceAll(more, "\n", "\n  "))
		}
		for _, line := range []string{p.Doing, p.Hint} {
			if line != "" {
				fmt.Fprintf(w, "  %s\n", line)
			}
		}
	}
	if len(s.Deployments) > 0 {
		fmt.Fprintln(w)
		writeDeployments(w, s)
	}
	if len(s.KeptVolumes) > 0 {
		fmt.Fprintf(w, "\nvolumes of removed applications on the disk: %d (longshore-agent volumes list)\n", len(s.KeptVolumes))
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(footer(s), " · "))
}

// from is where the device's state comes from.
func from(s *status.Status) string {
	place := "oci://" + s.Repository + ":" + s.Tag
	switch {
	case margo.IsManager(s.Repository):
		return s.Manager
	case s.Manager != "":
		return s.Manager + ", signed in " + place
	}
	return place
}

func writeDeployments(w io.Writer, s *status.Status) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  DEPLOYMENT\tVERSION\tSTATE\tSINCE\tSERVICES")
	for _, d := range s.Deployments {
		if len(d.Components) == 0 {
			fmt.Fprintf(t, "  %s\t\t%s\t%s\t\n", d.Name, d.State, ago(s.Now.Sub(d.Since)))
		}
		for i, c := range d.Components {
			name := d.Name
			if len(d.Components) > 1 {
				if name = "  " + c.Name; i == 0 {
					name = d.Name + "/" + c.Name
				}
			}
			services := make([]string, len(c.Services))
			for j, sv := range c.Services {
				services[j] = sv.Name
				if sv.Replica > 1 || j+1 < len(c.Services) && c.Services[j+1].Replica > 1 {
					services[j] += fmt.Sprintf("/%d", sv.Replica)
				}
				services[j] += " " + mark(sv)
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", name, c.Revision, c.State, ago(s.Now.Sub(c.Since)), strings.Join(services, "   "))
			if c.Error != nil {
				message, _ := sentence(c.Error.Message)
				fmt.Fprintf(t, "  \t\t\t\t%s (%s)\n", message, c.Error.Code)
			}
			for _, n := range c.Notices {
				message := n.Message
				if n.Path != "" {
					message = n.Path + ": " + message
				}
				fmt.Fprintf(t, "  \t\t\t\tnote: %s\n", message)
			}
		}
		for _, x := range s.Changes {
			if x.DeploymentID == d.ID && x.Waiting != nil {
				fmt.Fprintf(t, "  \t\t\t\t%s\n", changeText(x))
			}
		}
		if r := d.Refused; r != nil {
			fmt.Fprintf(t, "  \t%s\trefused\t%s\t%s\n", r.Revision, refusedSince(s, r), refused(r))
		}
	}
	_ = t.Flush() // the writer's own errors show at the next Fprintf
}

// sentence parts a message from the lines of output that it may end with.
func sentence(message string) (first, more string) {
	first, more, ok := strings.Cut(message, "\n")
	if at := strings.LastIndex(first, "; "); ok && at >= 0 && strings.HasSuffix(first, ":") {
		first, more = first[:at], first[at+2:]+"\n"+more
	}
	return first, more
}

// refused is which revision is not run, and what is in its place.
func refused(r *status.RefusedRevision) string {
	out := fmt.Sprintf("generation %d (%s)", r.Generation, printable.Digest(r.Digest))
	switch {
	case r.Paused:
		return out + ": its update is paused"
	case r.Waiting:
		return out + fmt.Sprintf(": cannot start now; generation %d runs on", r.RunningGeneration)
	}
	return out + fmt.Sprintf(": did not run; generation %d runs in its place", r.RunningGeneration)
}

func refusedSince(s *status.Status, r *status.RefusedRevision) string {
	if r.Since.IsZero() {
		return ""
	}
	return ago(s.Now.Sub(r.Since))
}

func mark(s status.Service) string {
	out := "✗"
	switch {
	case s.Status == workload.Running:
		out = "✓"
	case s.Status == workload.Exited && s.ExitCode == 0 && s.NextStart.IsZero():
		out = "✓ " + finished
	case s.Status == "":
		out = "…"
	}
	if s.Health != "" {
		out += " " + string(s.Health)
	}
	if s.Restarts > 0 {
		out += " (" + printable.Counted(s.Restarts, "restart") + ")"
	}
	return out
}

// underWay is what the agent is doing towards the accepted generation: "installing: hello/web is starting".
func underWay(s *status.Status) string {
	switch {
	case s.Checking:
		return "checking " + s.Repository
	case s.Loading != nil:
		return loading(s.Loading)
	}
	var waits []string
	for _, d := range s.Deployments {
		for _, c := range d.Components {
			name := d.Name
			if len(d.Components) > 1 {
				name += "/" + c.Name
			}
			if c.State != margo.StateInstalled {
				waits = append(waits, awaited(name, c)...)
			}
		}
	}
	if len(waits) == 0 {
		return string(s.Phase)
	}
	const most = 5
	if n := len(waits) - most; n > 0 {
		waits = append(waits[:most], fmt.Sprintf("and %d more", n))
	}
	return "installing: " + strings.Join(waits, ", ")
}

// awaited are the containers that keep a component from being installed, each with what it is at.
func awaited(name string, c status.Component) []string {
	var out []string
	for _, s := range c.Services {
		at := ""
		switch {
		case s.Status == "":
			at = "is not created yet"
		case s.Status == workload.Created:
			at = "is not started yet"
		case s.Status == workload.Exited && (s.ExitCode != 0 || !s.NextStart.IsZero()):
			at = fmt.Sprintf("exited with code %d", s.ExitCode)
		case s.Status == workload.Paused, s.Health == plan.HealthStarting, s.Health == plan.HealthUnhealthy:
			at = "is " + cmp.Or(string(s.Health), string(s.Status))
		default:
			continue
		}
		service := name + "/" + s.Name
		if s.Replica > 1 {
			service += fmt.Sprintf("/%d", s.Replica)
		}
		out = append(out, service+" "+at)
	}
	switch {
	case len(out) > 0:
		return out
	case c.State == margo.StateInstalling:
		return []string{name + " has started and must stay up for a while"}
	}
	return []string{name + " is " + string(c.State)}
}

func loading(l *status.Loading) string {
	return fmt.Sprintf("loading generation %d: %d of %d images, %.1f of %.1f MB", l.Generation, l.Ready, l.Images, float64(l.Done)/1e6, float64(l.Total)/1e6)
}

// progress is where the change to the newest state stands: "generation 43: awaiting-approval for 3h (approval-needed)"; "": it runs.
func progress(s *status.Status) string {
	p := s.Progress
	if p == nil || p.Phase == store.PhaseCommitted {
		return ""
	}
	out := "a newer state (" + printable.Digest(p.Digest) + ")"
	if p.Generation > 0 {
		out = fmt.Sprintf("generation %d", p.Generation)
	}
	out += fmt.Sprintf(": %s for %s", p.Phase, ago(s.Now.Sub(p.Since)))
	if p.Total > 0 {
		out += fmt.Sprintf(", %.1f of %.1f MB", float64(p.Done)/1e6, float64(p.Total)/1e6)
	}
	if p.Attempt > 1 {
		out += fmt.Sprintf(", boot %d", p.Attempt)
	}
	if !p.Until.IsZero() {
		out += ", until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.Code != "" {
		out += " (" + p.Code + ")"
	}
	return out
}

func checked(s *status.Status) string {
	switch {
	case s.Checking:
		return ", checking now"
	case s.CheckedAt.IsZero():
		return ", not checked yet"
	}
	return ", checked " + ago(s.Now.Sub(s.CheckedAt)) + " ago"
}

func signedBy(g *status.Generation) string {
	switch {
	case len(g.SignedBy) > 0:
		return ", signed by " + strings.Join(g.SignedBy, ", ")
	case g.Insecure:
		return ", NOT SIGNED (the policy allows it)"
	}
	return ""
}

// trusted is where the trust policy is from.
func trusted(s *status.Status) string {
	t := s.Trust
	out := " from " + t.File
	if t.Source == status.TrustFromRegistry {
		out = ", taken over"
		if !t.Since.IsZero() {
			out += " " + ago(s.Now.Sub(t.Since)) + " ago"
		}
		if len(t.SignedBy) > 0 {
			out += ", signed by " + strings.Join(t.SignedBy, ", ")
		}
	}
	switch {
	case t.Repository == "":
		out += ", the last one"
	case !t.CheckedAt.IsZero():
		out += ", checked " + ago(s.Now.Sub(t.CheckedAt)) + " ago"
	}
	return out
}

func footer(s *status.Status) []string {
	var out []string
	if l := s.Loading; l != nil {
		out = append(out, loading(l))
	}
	if !s.NextCheck.IsZero() {
		out = append(out, "next check in "+ago(s.NextCheck.Sub(s.Now)))
	}
	if w := s.PollWindow; w != nil {
		out = append(out, window("checks", w))
	}
	if w := s.ChangeWindow; w != nil {
		out = append(out, window("changes", w))
	}
	if d := s.Downtime; d != nil {
		text := "in declared downtime"
		if !d.Until.IsZero() {
			text += " until " + d.Until.UTC().Format(time.RFC3339)
		}
		out = append(out, text)
	}
	switch o := s.Outbox; {
	case !o.Enabled:
		out = append(out, "no fleet endpoint")
	case o.Depth == 0:
		out = append(out, "all reports delivered")
	default:
		out = append(out, printable.Counted(o.Depth, "report")+" not delivered to the fleet endpoint yet")
	}
	if r := s.CurrentReport; r != nil && r.LastError == "" && r.Counter > 0 {
		line := fmt.Sprintf("report %d pushed to the registry %s ago", r.Counter, ago(s.Now.Sub(r.At)))
		if !r.NextDue.IsZero() {
			line += ", the next one in " + ago(r.NextDue.Sub(s.Now))
		}
		out = append(out, line)
	}
	return append(out, "longshore-agent "+s.Version)
}

// window is one kind of window: "window for changes Mon-Fri 22:00-05:00 (Europe/Berlin) of agent.yaml, closed until 2026-11-27T21:00:00Z".
func window(of string, w *status.Window) string {
	state := "closed"
	if w.Open {
		state = "open"
	}
	switch {
	case w.ClockUnknown:
		state += ": the time is not known"
	case !w.Until.IsZero():
		state += " until " + w.Until.UTC().Format(time.RFC3339)
	case !w.Open:
		state += " for good"
	}
	shown := strings.Join(w.Windows, ", ")
	for i, s := range w.Sources {
		one := strings.Join(s.Windows, ", ") + " of " + s.From
		if s.Generation > 0 {
			one = fmt.Sprintf("%s of generation %d", strings.Join(s.Windows, ", "), s.Generation)
		}
		if i > 0 {
			one = shown + " and only " + one
		}
		shown = one
	}
	return "window for " + of + " " + shown + ", " + state
}
