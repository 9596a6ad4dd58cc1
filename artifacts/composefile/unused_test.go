package composefile_test

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

func of(text string) *artifacts.Archive {
	return &artifacts.Archive{Root: "line", FS: fstest.MapFS{}, Compose: []byte(text)}
}

// A name counts as used wherever it stands as a word; what is told as known is what compose.yaml refers to.
func TestUnused(t *testing.T) {
	a := of("services:\n  web:\n    image: caddy:2.10\n    environment: {POLL: \"${POLL_SECONDS:-5}\", PLACE: null}\n    labels: {x: $LABEL}\n    env_file: line.env\n")
	a.FS = fstest.MapFS{"line.env": {Data: []byte("TOKEN=a${SECRET_PART}b\nPASSED\n")}}
	unused, known, err := composefile.Unused(a, []string{"POLL_SECONDS", "POLL_SECOND", "SECONDS", "PLACE", "LABEL", "SECRET_PART", "PASSED", "LINE_"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"POLL_SECOND", "SECONDS", "LINE_"}; !slices.Equal(unused, want) {
		t.Errorf("unused %v, want %v", unused, want)
	}
	if want := []string{"LABEL", "POLL_SECONDS"}; !slices.Equal(known, want) {
		t.Errorf("known %v, want %v", known, want)
	}
}

// The variable by which Compose chooses services is used by a file with profiles, though no value refers to it.
func TestProfilesAreUsed(t *testing.T) {
	for text, want := range map[string][]string{
		"services: {web: {image: x}, debug: {image: x, profiles: [debug]}}": nil,
		"services: {web: {image: x}}":                                       {"COMPOSE_PROFILES"},
	} {
		if unused, _, err := composefile.Unused(of(text), []string{"COMPOSE_PROFILES"}); err != nil || !slices.Equal(unused, want) {
			t.Errorf("%s: unused %v, %v, want %v", text, unused, err, want)
		}
	}
}
