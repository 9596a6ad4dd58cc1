package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// BenchmarkState counts what one signed state more costs in requests, the first of a device and the next: six devices cost four
// times that more than two. TestRequestsOfAState in cmd/longshore fixes the numbers.
func BenchmarkState(b *testing.B) {
	program, err := build(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		b.Run(string(kind), func(b *testing.B) {
			for b.Loop() {
				s, err := open(b.Context(), b.TempDir(), program, testenv.Registry(b, kind), 1, 1)
				if err != nil {
					b.Fatal(err)
				}
				for round, unit := range []string{"first-requests/state", "next-requests/state"} {
					few, err := s.publishFew(b.Context(), 2, 10+round)
					many, errMany := s.publishFew(b.Context(), 6, 10+round)
					if err := errors.Join(err, errMany); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(many-few)/4, unit)
				}
			}
		})
	}
}

// publishFew publishes the states of so many devices, one after the other, to a repository of their own, and returns the number of requests.
func (s *Stage) publishFew(ctx context.Context, devices, poll int) (int, error) {
	var fleet strings.Builder
	fmt.Fprintf(&fleet, "fleet: acme\nregistry: %s/plant\nstates: state-of-%d\napplications: {line: {component: components/line, version: 1.4.0}}\n", s.server.Host, devices)
	fmt.Fprintf(&fleet, "deployments: {line: {application: line, select: \"*\", parameters: {POLL: %d}}}\ndevices:\n", poll)
	for i := range devices {
		fmt.Fprintf(&fleet, "  - {id: press-%d}\n", i)
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("fleet-of-%d", devices))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "fleet.yaml"), []byte(fleet.String()), 0o644)); err != nil {
		return 0, err
	}
	all, err := s.requests(ctx, "/plant/state-of-", "fleet", "publish", "-q", "--key", "release.key", "--parallel", "1", dir)
	return len(all), err
}

// requests runs the program and returns those that it made to a place, but for the questions for blobs: the first uploads of a run find out
// what the registry can, and how many those are is chance.
func (s *Stage) requests(ctx context.Context, place string, args ...string) (all []testenv.Request, err error) {
	s.server.Faults.Forget()
	r, err := s.run(ctx, args...)
	if err == nil && r.code != 0 {
		err = fmt.Errorf("longshore %s: exit %d\n%s", strings.Join(args, " "), r.code, r.output)
	}
	for _, r := range s.server.Faults.Requests("", place) {
		if r.Method != "HEAD" || !strings.Contains(r.Path, "/blobs/") {
			all = append(all, r)
		}
	}
	return all, err
}

// BenchmarkStatePush counts what the first two states of one device cost in requests beside the tags of 10,000 other devices, and in an
// empty repository.
func BenchmarkStatePush(b *testing.B) {
	const others = 10_000
	program, err := build(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := open(b.Context(), b.TempDir(), program, testenv.Registry(b, testenv.Distribution), 1, 1)
		if err == nil {
			err = s.crowd(b.Context(), others)
		}
		if err != nil {
			b.Fatal(err)
		}
		for name, repository := range map[string]string{"alone": "plant/alone", "among": "plant/state"} {
			requests, lists := 0, 0
			for _, poll := range []string{"10", "20"} {
				all, err := s.requests(b.Context(), "/"+repository+"/", "state", "push", "-q", "-d", "press-07", "--key", "release.key",
					"--component", s.server.Reference("plant/components/line:1.4.0"), "--set", "POLL="+poll, s.server.Reference(repository))
				if err != nil {
					b.Fatal(err)
				}
				requests += len(all)
				for _, r := range all {
					if strings.HasSuffix(r.Path, "/tags/list") {
						lists++
					}
				}
			}
			b.ReportMetric(float64(requests), name+"-requests/device")
			b.ReportMetric(float64(lists), name+"-lists/device")
		}
	}
}

// crowd sets the tags of other devices, each with a history of one generation.
func (s *Stage) crowd(ctx context.Context, others int) error {
	client, err := registry.New(registry.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	repo, err := client.OpenName(ctx, s.server.Reference("plant/state"))
	if err != nil {
		return err
	}
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-08", Generation: 1})
	if err != nil {
		return err
	}
	if _, err := release.Publish(ctx, repo, a, release.PublishOptions{Tags: []string{"press-08"}}); err != nil {
		return err
	}
	d := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(rawConnections)
	for i := range others {
		device := artifacts.DeviceID(fmt.Sprintf("%c-%05d", 'a'+i%26, i)) // before and after the one that is pushed
		for _, tag := range []string{artifacts.HistoryTag(device.Tag(), 1), device.Tag()} {
			g.Go(func() error { return repo.PushManifest(ctx, d, a.Manifest, tag) })
		}
	}
	return g.Wait()
}
