package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// looker remembers what was asked for, and finds what it was told to find.
type looker struct {
	mu     sync.Mutex
	asked  map[string]int
	wrong  string // in the name of content that is not there
	denied error  // who signed anything
}

func (l *looker) content(_ context.Context, c fleet.Content) (f fleet.Finding, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[fmt.Sprint(c)]++
	if l.wrong != "" && strings.Contains(c.Name(), l.wrong) {
		f.Wrong = []string{c.Name() + ": it is not at harbor"}
	}
	return f, nil
}

func (l *looker) vouched(_ context.Context, c fleet.Content) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked["signatures of "+c.Name()]++
	return l.denied
}

// What is wrong with content is of every device that would load it, in a plan and in a check, and is asked for once.
func TestContent(t *testing.T) {
	m, files := stocked(t), plant()
	l := &looker{asked: map[string]int{}}
	o := options()
	o.Content, o.Trusted = l.content, l.vouched
	if p := plan(t, files, m, o); p.Count(fleet.Publish) != 3 {
		t.Errorf("%d devices would change, want 3", p.Count(fleet.Publish))
	}
	if _, err := compiled(t, files, m).Check(t.Context(), m, o); err != nil {
		t.Error(err)
	}
	for what, n := range l.asked {
		if n != 2 { // once for the plan, once for the check
			t.Errorf("%s was asked for %d times", what, n)
		}
	}
	l.wrong = "components/sensor@" // on the devices of line-a only
	p := plan(t, files, m, o)
	_, err := compiled(t, files, m).Check(t.Context(), m, o)
	for _, err := range []error{p.Unfit(), err} {
		if !errors.Is(err, fault.ErrUnfit) || !strings.HasPrefix(err.Error(), "press-07, press-08: ") || strings.Contains(err.Error(), "press-19") {
			t.Errorf("%v, want what is wrong with press-07 and press-08", err)
		}
	}
	l.wrong, l.denied = "", fmt.Errorf("verify: %w", fault.ErrUnsigned)
	if p := plan(t, files, m, o); p.Count(fleet.Cannot) != 3 || !strings.Contains(p.Unfit().Error(), "image caddy:2.10@") {
		t.Errorf("%d devices cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
	l.denied = fmt.Errorf("verify: %w: %w", fault.ErrTemporary, fault.ErrUnsigned)
	if _, err := compiled(t, files, m).Plan(t.Context(), m, o); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("nobody could tell who signed: %v", err)
	}
}

// What two deployments want for themselves is told of the devices that run both.
func TestClaims(t *testing.T) {
	m, files := stocked(t), plant()
	claim := func(what, at string) fleet.Claim {
		c := fleet.Claim{What: what}
		if at != "" {
			c.At = netip.MustParsePrefix(at)
		}
		return c
	}
	for _, c := range []struct {
		line, sensor fleet.Claim
		clash        bool
	}{
		{claim("port 80/tcp", ""), claim("port 80/tcp", ""), true},
		{claim("port 80/tcp", ""), claim("port 80/udp", ""), false},
		{claim("port 80/tcp", "10.0.0.1/32"), claim("port 80/tcp", "10.0.0.2/32"), false},
		{claim("port 80/tcp", "10.0.0.1/32"), claim("port 80/tcp", ""), true},
	} {
		o := options()
		o.Services = func(_ context.Context, a *artifacts.Archive, _ map[string]string, _ string) ([]fleet.Service, error) {
			if a.Root == "sensor" {
				return []fleet.Service{{Name: "web", Claims: []fleet.Claim{c.sensor}}}, nil
			}
			return []fleet.Service{{Name: "web", Claims: []fleet.Claim{c.line}}, {Name: "broker", Claims: []fleet.Claim{c.line}}}, nil
		}
		want := 0
		if c.clash {
			want = 2
		}
		p := plan(t, files, m, o)
		_, err := compiled(t, files, m).Check(t.Context(), m, o)
		if p.Count(fleet.Cannot) != want || (err != nil) != c.clash {
			t.Errorf("%v and %v: %d devices cannot, %v", c.line, c.sensor, p.Count(fleet.Cannot), err)
		}
		if c.clash && !strings.Contains(err.Error(), "is used by service broker of line and by service web of sensor") {
			t.Error(err)
		}
	}
}

// A parameter that nothing in a component refers to is told with the name that was probably meant. What a package declares is
// the package's own.
func TestUnusedParameters(t *testing.T) {
	m, files := stocked(t), plant()
	o := options()
	takes := []string{"RATE", "POLL", "LINE_NAME", "PORTS", "LEVEL", "DEBUG"}
	o.Unused = func(_ *artifacts.Archive, names []string) (unused, known []string, err error) {
		for _, name := range names {
			if !slices.Contains(takes, name) {
				unused = append(unused, name)
			}
		}
		return unused, takes, nil
	}
	if _, err := compiled(t, files, m).Check(t.Context(), m, o); err != nil {
		t.Errorf("every parameter is taken: %v", err)
	}
	all := takes
	takes = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "DEBUG" }) // of the package alone
	if notes, err := compiled(t, files, m).Check(t.Context(), m, o); err != nil || !strings.Contains(strings.Join(notes, "\n"), "does not use the variable DEBUG") {
		t.Errorf("notes %q, %v, want one about DEBUG", notes, err)
	}
	takes = append(all[1:], "RATES")
	p := plan(t, files, m, o)
	_, err := compiled(t, files, m).Check(t.Context(), m, o)
	for _, err := range []error{p.Unfit(), err} {
		if !errors.Is(err, fault.ErrUnfit) || !strings.HasPrefix(err.Error(), "press-07, press-08: device does not fit: sensor: parameter RATE: component sensor does not use the variable RATE (did you mean RATES?)") {
			t.Error(err)
		}
	}
	// Also of a package's parameters those that the files give a value.
	takes = []string{"RATE", "POLL", "LINE_NAMES"}
	if _, err := compiled(t, files, m).Check(t.Context(), m, o); !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "line: parameter name: component line-monitor does not use the variable LINE_NAME (did you mean LINE_NAMES?)") {
		t.Error(err)
	}
}
