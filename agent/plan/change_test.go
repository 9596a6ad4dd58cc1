package plan

import (
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
)

// A change has each of its kinds, so that no approval of one kind is avoided by another change beside it.
func TestKindsOfAChange(t *testing.T) {
	revision := func(name, image, values string) *Deployment {
		c := component("id", "web", service("web", "web:"+image))
		c.Digest, c.Values = digest.FromString(name), values
		return &Deployment{ID: "id", Name: "plant", Digest: digest.FromString(name + image + values), Components: []Component{c}}
	}
	old := revision("one", "1", "a")
	for name, tc := range map[string]struct {
		d    *Deployment
		want []Kind
	}{
		"values":                {revision("one", "1", "b"), []Kind{Parameters}},
		"revision":              {revision("two", "1", "a"), []Kind{Configuration}},
		"revision and values":   {revision("two", "1", "b"), []Kind{Parameters, Configuration}},
		"all three":             {revision("two", "2", "b"), []Kind{Images, Parameters, Configuration}},
		"other documents alone": {&Deployment{ID: "id", Name: "plant", Digest: digest.FromString("x"), Components: old.Components}, nil},
	} {
		got := Changes(&Desired{Deployments: []Deployment{*tc.d}}, map[string]GoodRevision{"id": {Record: store.Good{Digest: old.Digest}, Deployment: old}})
		if len(got) != min(1, len(tc.want)) || len(got) > 0 && !slices.Equal(got[0].Kinds, tc.want) {
			t.Errorf("%s: %+v, want %v", name, got, tc.want)
		}
	}
}
