package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// What publishing one signed state more costs in requests. A change of these numbers is a change of how fast large fleets
// are published.
func TestRequestsOfAState(t *testing.T) {
	for kind, want := range map[testenv.Kind][2]int{ // the first state of a device, and the next one
		testenv.Distribution: {19, 21},
		testenv.Referrers:    {13, 15},
	} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.stock()
			fleetOf := func(n, poll int) {
				var b strings.Builder
				fmt.Fprintf(&b, "fleet: acme\nregistry: %s/plant\nstates: state-of-%d\napplications: {line: {component: components/line-monitor, version: 1.4.0}}\n", host, n)
				fmt.Fprintf(&b, "deployments: {line: {application: line, select: \"*\", parameters: {POLL_SECONDS: %d}}}\ndevices:\n", poll)
				for i := range n {
					fmt.Fprintf(&b, "  - {id: press-%d}\n", i)
				}
				s.write(fmt.Sprintf("fleet-of-%d/fleet.yaml", n), b.String())
			}
			count := func(n, poll int) (all int, kinds map[string]int) {
				fleetOf(n, poll)
				s.server.Faults.Forget()
				s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "--parallel", "1", fmt.Sprintf("fleet-of-%d", n))
				kinds = map[string]int{}
				for _, r := range s.server.Faults.Requests("", "/state-of-") {
					if r.Method == "HEAD" && strings.Contains(r.Path, "/blobs/") {
						continue // the first blobs of a run find out what the registry can; how many those are is chance
					}
					kinds[r.Method+" "+placeOf(r.Path)]++
					all++
				}
				return all, kinds
			}
			var got [2]int
			for round := range got {
				few, fewKinds := count(2, 10+round)
				many, manyKinds := count(6, 10+round)
				got[round] = (many - few) / 4
				for _, k := range slices.Sorted(maps.Keys(manyKinds)) {
					t.Logf("state %d: %g %s", round+1, float64(manyKinds[k]-fewKinds[k])/4, k)
				}
			}
			if got != want {
				t.Errorf("%d requests for a device's first state and %d for the next, want %v", got[0], got[1], want)
			}
		})
	}
}

var (
	digestTag   = regexp.MustCompile(`manifests/sha256-.*`)
	digestOnly  = regexp.MustCompile(`sha256:.*`)
	historyTag  = regexp.MustCompile(`manifests/press-\d+\.v(\d+)`)
	movingTag   = regexp.MustCompile(`manifests/press-\d+$`)
	uploadPlace = regexp.MustCompile(`blobs/uploads/.*`)
)

// placeOf is what a request is about, for people.
func placeOf(path string) string {
	_, path, _ = strings.Cut(strings.TrimPrefix(path, "/v2/plant/"), "/")
	path = digestTag.ReplaceAllString(path, "list of referrers")
	path = historyTag.ReplaceAllString(path, "history tag $1")
	path = movingTag.ReplaceAllString(path, "moving tag")
	path = uploadPlace.ReplaceAllString(path, "upload")
	return digestOnly.ReplaceAllString(path, "digest")
}

// A state costs the same beside the tags of many other devices as in an empty repository: those are not listed.
func TestRequestsOfAStateAmongMany(t *testing.T) {
	const others = 1200 // more than a page of tags
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.stock()
			count := func(repository string) (all []string) {
				for _, poll := range []string{"10", "20"} {
					s.server.Faults.Forget()
					s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS="+poll, host+"/"+repository)
					for _, r := range s.server.Faults.Requests("", "/"+repository+"/") {
						if !strings.Contains(r.Path, "/blobs/") { // these are the same however many devices there are, but for chance
							all = append(all, r.Method+" "+placeOf(r.Path))
						}
					}
				}
				return all
			}
			alone := count("plant/alone")
			repo := s.repository()
			a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-08", Generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := release.Publish(t.Context(), repo, a, release.PublishOptions{Tags: []string{"press-08"}}); err != nil {
				t.Fatal(err)
			}
			d := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
			for i := range others {
				if err := repo.PushManifest(t.Context(), d, a.Manifest, fmt.Sprintf("%c-%04d.v7", 'a'+i%26, i)); err != nil {
					t.Fatal(err)
				}
			}
			if among := count("plant/state"); !slices.Equal(among, alone) {
				t.Errorf("%d requests, want the %d as alone:\n%s\n\n%s", len(among), len(alone), strings.Join(among, "\n"), strings.Join(alone, "\n"))
			}
		})
	}
}
