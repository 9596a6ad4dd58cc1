package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// DocumentDiff has the changes in the documents of devices.
type DocumentDiff struct {
	Devices []string `json:"devices"`
	Lines   []string `json:"lines"` // of a unified diff
}

// maxDiffLines bounds the comparison of two documents; above it all lines of one are replaced by all lines of the other.
const maxDiffLines = 2000

// Diffs compares the ApplicationDeployments that the registry has with those that the plan publishes, line by line; devices
// with the same changed lines are grouped, and those without changes are left out.
func (p *Plan) Diffs(ctx context.Context, from Registry) ([]*DocumentDiff, error) {
	reader := &planner{c: p.c, from: from, o: p.o}
	changed := make([][]string, len(p.Devices))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(p.o.concurrency())
	for i, d := range p.Devices {
		if d.Action != Publish {
			continue
		}
		g.Go(func() (err error) {
			if changed[i], err = reader.diff(inner, d); err != nil {
				err = fmt.Errorf("compare %s: %w", d.Device, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	byText := map[string]*DocumentDiff{}
	all := []*DocumentDiff{}
	for i, d := range p.Devices {
		lines := changed[i]
		if len(lines) == 0 {
			continue
		}
		key := strings.Join(lines, "\n")
		x := byText[key]
		if x == nil {
			x = &DocumentDiff{Lines: lines}
			byText[key] = x
			all = append(all, x)
		}
		x.Devices = append(x.Devices, string(d.Device))
	}
	return all, nil
}

// diff compares the documents of one device.
func (p *planner) diff(ctx context.Context, d *DevicePlan) ([]string, error) {
	a := d.assignment
	documents, err := a.Documents(p.c.Fleet)
	if err != nil {
		return nil, err
	}
	now := map[string]string{}
	var names []string
	var known []digest.Digest
	for i, at := range a.Placements {
		now[at.Deployment.Name] = string(documents[i])
		names = append(names, at.Deployment.Name)
		known = append(known, digest.FromBytes(documents[i]))
	}
	var out []string
	was := map[string]string{}
	s, err := p.look(ctx, a)
	if err != nil {
		return nil, err
	}
	if s.base != nil {
		before, err := p.deployments(ctx, a, s.base, known...)
		if permanent(err) { // it does not affect other devices
			out, before, err = append(out, fmt.Sprintf("# what it has could not be read, and counts as nothing: %v", err)), nil, nil
		}
		if err != nil {
			return nil, err
		}
		there := s.base.documents()
		for i, at := range a.Placements {
			if slices.Contains(there, known[i]) {
				was[at.Deployment.Name] = now[at.Deployment.Name]
			}
		}
		names = append(names, namesOf(before, now)...)
		for _, b := range before {
			was[b.Document.Metadata.Name] = string(b.Bytes)
		}
	}
	for _, name := range names {
		out = append(out, diffOf(name, was[name], now[name])...)
	}
	if c := changeOfWindows(s.base, a.Windows); c != nil {
		out = append(out, diffOf("windows", listed(c.Was), listed(c.Windows))...)
	}
	return out, nil
}

func listed(w schedule.Windows) string { return strings.Join(w.Strings(), "\n") }

// DiffDocuments is a unified diff of documents by name; nil if they are equal.
func DiffDocuments(was, now map[string][]byte) []string {
	names := slices.Concat(sortedKeys(was), sortedKeys(now))
	slices.Sort(names)
	var out []string
	for _, n := range slices.Compact(names) {
		out = append(out, diffOf(n, string(was[n]), string(now[n]))...)
	}
	return out
}

// namesOf are the deployments that exist and are removed.
func namesOf(before []artifacts.Deployment, now map[string]string) []string {
	var out []string
	for _, b := range before {
		if _, ok := now[b.Document.Metadata.Name]; !ok {
			out = append(out, b.Document.Metadata.Name)
		}
	}
	return out
}

// diffOf is a unified diff of two documents, with two lines around each change.
func diffOf(name, was, now string) []string {
	const around = 2
	if was == now {
		return nil
	}
	a, b := lines(was), lines(now)
	marked := compareLines(a, b)
	out := []string{fmt.Sprintf("--- %s", name), fmt.Sprintf("+++ %s", name)}
	if was == "" {
		out[0] = "--- /dev/null"
	}
	if now == "" {
		out[1] = "+++ /dev/null"
	}
	last := -1
	for i, m := range marked {
		near := false
		for j := max(0, i-around); j <= min(len(marked)-1, i+around); j++ {
			near = near || marked[j][0] != ' '
		}
		if !near {
			continue
		}
		if i != last+1 || last < 0 {
			out = append(out, "@@")
		}
		out, last = append(out, m), i
	}
	return out
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// compareLines marks lines with ' ', '-' and '+', by their longest common subsequence.
func compareLines(a, b []string) []string {
	var out []string
	mark := func(sign string, all ...string) {
		for _, l := range all {
			out = append(out, sign+l)
		}
	}
	if len(a) > maxDiffLines || len(b) > maxDiffLines {
		mark("-", a...)
		mark("+", b...)
		return out
	}
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			mark(" ", a[i])
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			mark("-", a[i])
			i++
		default:
			mark("+", b[j])
			j++
		}
	}
	mark("-", a[i:]...)
	mark("+", b[j:]...)
	return out
}
