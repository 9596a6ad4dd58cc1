package intake

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
)

func TestTranslations(t *testing.T) {
	var kept translations
	kept.turn()
	reads := 0
	image := workload.Image{Repository: "registry.example/web", Digest: digest.FromString("web")}
	load := func(archive string, o compose.Options) (*workload.Project, error) {
		return kept.load(t.Context(), digest.FromString(archive), o, func(context.Context, compose.Options) (*workload.Project, error) {
			reads++
			return &workload.Project{Component: o.Component, Services: []workload.Service{{Name: "web", Image: image}}}, nil
		})
	}
	first := compose.Options{Deployment: "d", Component: "c", Generation: 1, Environment: map[string]string{"A": "1"}, Platform: "linux/amd64"}
	changed := func(change func(*compose.Options)) compose.Options {
		o := first
		o.Environment = maps.Clone(first.Environment)
		change(&o)
		return o
	}
	for _, tt := range []struct {
		name    string
		archive string
		o       compose.Options
		reads   int
	}{
		{"first", "a", first, 1},
		{"again", "a", first, 1},
		{"another generation", "a", changed(func(o *compose.Options) { o.Generation = 2 }), 1},
		{"another archive", "b", first, 2},
		{"another value", "a", changed(func(o *compose.Options) { o.Environment["A"] = "2" }), 3},
		{"another deployment", "a", changed(func(o *compose.Options) { o.Deployment = "e" }), 4},
		{"another platform", "a", changed(func(o *compose.Options) { o.Platform = "linux/arm64" }), 5},
	} {
		p, err := load(tt.archive, tt.o)
		if err != nil || p.Generation != tt.o.Generation || p.Services[0].Image != image {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
		}
		if reads != tt.reads {
			t.Errorf("%s: read %d times, want %d", tt.name, reads, tt.reads)
		}
	}
	kept.turn()
	if _, err := load("a", first); err != nil || reads != 5 {
		t.Errorf("after one state: read %d times, want 5; %v", reads, err)
	}
	kept.turn()
	kept.turn()
	if _, err := load("a", first); err != nil || reads != 6 {
		t.Errorf("after two states without it: read %d times, want 6; %v", reads, err)
	}
	image.Digest, reads = "", 0 // resolved when the state is read, which may come to something else the next time
	for range 2 {
		if _, err := load("open", first); err != nil {
			t.Error(err)
		}
	}
	if reads != 2 {
		t.Errorf("a project with an open image was read %d times, want 2", reads)
	}
	bad := errors.New("bad")
	for range 2 {
		if _, err := kept.load(t.Context(), "x", first, func(context.Context, compose.Options) (*workload.Project, error) { return nil, bad }); !errors.Is(err, bad) {
			t.Errorf("load = %v, want %v", err, bad)
		}
	}
}
