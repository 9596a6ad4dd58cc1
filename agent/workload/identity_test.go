package workload_test

import (
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore-dev/longshore/agent/workload"
)

// containerdID is what containerd takes as an identifier, of 76 characters at most.
var containerdID = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)

func service() workload.Service {
	return workload.Service{
		Name:        "web",
		Image:       workload.Image{Repository: "docker.io/library/caddy", Tag: "2.10", Digest: "sha256:" + "11", Platform: "linux/arm64", Size: 7},
		Command:     []string{"run"},
		Environment: []string{"A=1"},
		Labels:      map[string]string{"b": "2", "a": "1"},
		Ports:       []workload.Port{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}},
		Networks:    []workload.Attachment{{Network: "default"}},
		DependsOn:   []workload.Dependency{{Service: "db", Condition: workload.Started}},
	}
}

// The hash of one service as it was when the first devices ran it. A change of it restarts every container in the
// field: it may only come with a reason.
func TestHashGolden(t *testing.T) {
	const want = "da61d266691339341bb3890f2b3e5d6134c64031a09ecfd10efe33299bc5b873"
	if got := service().Hash(); got != want {
		t.Errorf("Hash() = %s, want %s", got, want)
	}
}

func TestHashLeavesOutWhatDoesNotShape(t *testing.T) {
	a, b := service(), service()
	b.DependsOn, b.Image.Tag, b.Image.Size = nil, "latest", 99
	if a.Hash() != b.Hash() {
		t.Error("tag, size and dependencies changed the hash")
	}
	if len(a.DependsOn) != 1 || a.Image.Tag != "2.10" {
		t.Error("Hash changed its service")
	}
}

// Every other field must count: a field that is forgotten here is an update that never arrives.
func TestHashCountsEveryField(t *testing.T) {
	base := service().Hash()
	free := map[string]bool{"DependsOn": true, "Replicas": true, "Update": true, "Rollback": true}
	typ := reflect.TypeFor[workload.Service]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		if free[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := service()
			disturb(t, reflect.ValueOf(&s).Elem().Field(i))
			if s.Hash() == base {
				t.Errorf("a change of %s does not change the hash", name)
			}
		})
	}
	s := service()
	s.Command = []string{}
	if n := service(); func() string { n.Command = nil; return n.Hash() }() == s.Hash() {
		t.Error("no command and the image's command have one hash")
	}
}

// disturb gives a value another content.
func disturb(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"other": "x"}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		disturb(t, v.Field(0))
	default:
		t.Fatalf("no way to disturb a %s", v.Kind())
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("Very.Long_Name--", 20)
	names := []string{"web", "Line Monitor", "a__b", "--", "", "ümläut", "x" + strings.Repeat("-", 40) + "y", long, "a.b", "trailing-dash-at-the-23rd-x"}
	seen := map[string]string{}
	for _, deployment := range []string{"d1", "d2"} {
		for _, component := range names {
			p := workload.ProjectName(deployment, component)
			if len(p) > 32 || !containerdID.MatchString(p) || p != strings.ToLower(p) {
				t.Errorf("ProjectName(%q, %q) = %q", deployment, component, p)
			}
			if other, ok := seen[p]; ok {
				t.Errorf("%q and %q share the name %q", other, component, p)
			}
			seen[p] = component
			for _, s := range names {
				id := workload.ContainerID(p, s, 9999, service().Hash())
				if len(id) > 76 || !containerdID.MatchString(id) {
					t.Errorf("ContainerID(%q, %q) = %q, %d characters", p, s, id, len(id))
				}
			}
		}
	}
	if got, want := workload.ProjectName("a1b2", "Line Monitor"), "line-monitor-be774b6e"; got != want {
		t.Errorf("ProjectName = %q, want %q: it names volumes in the field", got, want)
	}
}

func TestContainers(t *testing.T) {
	a, b := service(), service()
	b.Name = "WEB" // clips to the same name, and is another container all the same
	p := workload.Project{Name: "p", Services: []workload.Service{a, b}}
	got := p.Containers()
	want := []workload.Container{
		{ID: "p-web-1-" + a.Hash()[:8], Service: a, Replica: 1, Hash: a.Hash()},
		{ID: "p-web-1-" + b.Hash()[:8], Service: b, Replica: 1, Hash: b.Hash()},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("Containers (-want +got):\n%s", diff)
	}
	if got[0].ID == got[1].ID {
		t.Error("two services share a container")
	}
}

func TestImageName(t *testing.T) {
	i := workload.Image{Repository: "h/p", Tag: "1", Digest: "sha256:ab"}
	if got := i.Name(); got != "h/p@sha256:ab" {
		t.Errorf("Name() = %q", got)
	}
}
