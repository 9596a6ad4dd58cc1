package agent_test

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// TestWhatASourceSaysIsNeverFinal: proxies answer 400, 402, 407 and 451, captive portals and brownouts answer anything; none
// of it judges the state, so the device comes to it by itself afterwards.
func TestWhatASourceSaysIsNeverFinal(t *testing.T) {
	components := "registry.example/plant/components/"
	for _, part := range []string{"resolve", "manifest " + agenttest.Repository, "blob " + agenttest.Repository, "manifest " + components, "blob " + components} {
		for _, err := range []error{fault.ErrInvalid, fault.ErrUnsupported, fault.ErrTooLarge, fault.ErrRejected, errors.New("unnamed")} {
			t.Run(part+"/"+err.Error(), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
					w.Publish(t, 5, anApp(1, "web:1"))
					r := w.Start(t)
					w.Sync(t, r)
					w.Registry.Fail(func(request string) error {
						if strings.Contains(request, part) {
							return fmt.Errorf("%s: %w", request, err)
						}
						return nil
					})
					next := anApp(1, "web:2")
					next.Components[0].Files = agenttest.Large()
					w.Publish(t, 6, next)
					want := codes.SourceUnreachable
					if errors.Is(err, fault.ErrTooLarge) && part == "manifest "+agenttest.Repository {
						want = codes.StateTooLarge
					}
					if res := w.Sync(t, r); res.Code != want {
						t.Errorf("sync = %+v, want %s", res, want)
					}
					w.Registry.Fail(nil)
					time.Sleep(20 * time.Minute)
					w.Committed(t, r, 6)
				})
			})
		}
	}
}

func TestWhatTheVerifierCannotFindOutIsNotFinal(t *testing.T) {
	for _, tc := range []struct {
		kind intake.Kind
		err  error
		want codes.Code
	}{
		{intake.KindState, fault.ErrInvalid, codes.SourceUnreachable},
		{intake.KindState, fault.ErrUnsupported, codes.SourceUnreachable},
		{intake.KindState, fault.ErrTooLarge, codes.SignatureInvalid},
		{intake.KindState, fault.ErrDigestMismatch, codes.SignatureInvalid},
		{intake.KindState, fault.ErrRejected, codes.SignatureRejected},
		{intake.KindComponent, fault.ErrUnsupported, codes.SourceUnreachable},
		{intake.KindComponent, fault.ErrTooLarge, codes.ComponentSignature},
		{intake.KindImage, fault.ErrInvalid, codes.SourceUnreachable},
		{intake.KindImage, fault.ErrDigestMismatch, codes.ImageSignature},
	} {
		t.Run(string(tc.kind)+"/"+tc.err.Error(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
				r := w.Start(t)
				w.Verifier.Rule(func(k intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
					if k == tc.kind {
						return intake.Verdict{}, fmt.Errorf("%s@%s: %w", repository, d.Digest, tc.err)
					}
					return intake.Verdict{}, nil
				})
				w.Publish(t, 6, anApp(1, "web:2"))
				if res := w.Sync(t, r); res.Code != tc.want {
					t.Errorf("sync = %+v, want %s", res, tc.want)
				}
				w.Verifier.Rule(nil)
				time.Sleep(20 * time.Minute)
				w.Committed(t, r, 6)
			})
		})
	}
}

func TestOtherDigestAlgorithmsAreRefusedByName(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		a := anApp(1, "web:1")
		a.Components[0].Unpinned = true
		w.Publish(t, 1, a)
		const repository = "registry.example/plant/components/app-1"
		_, data, err := w.Registry.Manifest(t.Context(), repository, w.Component(t, a.Components[0]))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha512.Sum512(data)
		w.Registry.Push(repository, &artifacts.Artifact{Manifest: data, Descriptor: ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, Digest: digest.NewDigestFromBytes(digest.SHA512, sum[:]), Size: int64(len(data)),
		}}, a.Components[0].Version)
		res := w.Sync(t, w.Start(t)) // which must not see the component before its tag moved
		if res.Outcome != status.SyncRefused || res.Code != codes.ComponentMissing || !strings.Contains(res.Message, "sha512") {
			t.Errorf("sync = %+v, want a refusal that names the algorithm", res)
		}
	})
}

// publishRefused publishes a state that is refused for good: its component asks for what no device gives.
func publishRefused(t *testing.T, w *agenttest.World, generation uint64) {
	t.Helper()
	a := anApp(1, "web:1")
	a.Extra = "    deviceConstraints:\n      capacityRequirements:\n        memory: 64Gi\n"
	w.Publish(t, generation, a)
}

func TestARefusalIsLookedAtAgainAfterAStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		publishRefused(t, w, 1)
		r := w.Start(t)
		if res := w.Sync(t, r); res.Code != codes.DeviceUnfit {
			t.Fatalf("sync = %+v", res)
		}
		r.Stop(t)
		asked := 0
		w.Verifier.Rule(func(intake.Kind, string, ocispec.Descriptor) (intake.Verdict, error) {
			asked++
			return intake.Verdict{}, nil
		})
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		r = w.Start(t)
		time.Sleep(10 * time.Minute)
		w.Registry.Fail(nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if asked != 1 {
			t.Errorf("the refused state was examined %d times after a start, want once", asked)
		}
		r.Stop(t)
	})
}

func TestARefusalHealsWithTheDevice(t *testing.T) {
	for name, edit := range map[string]func(*agent.Options){
		"more memory":   func(o *agent.Options) { o.Capabilities.Properties.Memory = "128Gi" },
		"as it was":     nil,
		"a new version": func(o *agent.Options) { o.Version = "0.0.1-test" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
				publishRefused(t, w, 1)
				r := w.Start(t)
				w.Sync(t, r)
				r.Stop(t)
				w.Edit = edit
				r = w.Start(t)
				time.Sleep(5 * time.Minute)
				if got := r.Status().Committed != nil; got != (name == "more memory") {
					t.Errorf("committed %v", got)
				}
			})
		})
	}
}

// TestAPolicyThatChangesDuringACheck: the refusal was made by the policy that came in between, and must not be remembered as
// that of the policy before it.
func TestAPolicyThatChangesDuringACheck(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.SetPolicy("good")
		r := w.Start(t)
		w.Sync(t, r)
		w.Verifier.Rule(func(k intake.Kind, _ string, _ ocispec.Descriptor) (intake.Verdict, error) {
			if k == intake.KindComponent { // in the middle
				w.SetPolicy("bad")
				return intake.Verdict{}, fmt.Errorf("component: %w", fault.ErrRejected)
			}
			return intake.Verdict{}, nil
		})
		w.Publish(t, 1, anApp(1, "web:1"))
		if res := w.Sync(t, r); res.Code != codes.ComponentRejected {
			t.Fatalf("sync = %+v", res)
		}
		w.Verifier.Rule(nil)
		w.SetPolicy("good")
		time.Sleep(5 * time.Minute)
		w.Committed(t, r, 1)
	})
}

func TestAVerdictOfAPolicyThatChangedIsNotKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.SetPolicy("strict")
		r := w.Start(t)
		w.Sync(t, r)
		asked := 0
		w.Verifier.Rule(func(intake.Kind, string, ocispec.Descriptor) (intake.Verdict, error) {
			if asked++; asked == 1 {
				w.SetPolicy("loose") // the file changes while the question is asked
				return intake.Verdict{}, nil
			}
			return intake.Verdict{}, fmt.Errorf("state: %w", fault.ErrRejected)
		})
		s := w.State(t, 1, func(o *artifacts.StateOptions) { o.Expires = w.Now().Add(-time.Hour) }, anApp(1, "web:1"))
		w.Registry.Push(agenttest.Repository, s, agenttest.Device.Tag())
		if res := w.Sync(t, r); res.Code != codes.Expired {
			t.Errorf("sync = %+v", res)
		}
		w.SetPolicy("strict")
		if res := w.Sync(t, r); res.Code != codes.SignatureRejected {
			t.Errorf("sync = %+v, want the state held against the strict policy", res)
		}
	})
}
