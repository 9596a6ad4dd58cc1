package agent_test

import (
	"bytes"
	"encoding/base64"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A component's manifest that carries another archive than it names, which is that of another project, does not replace what it names: it is
// unsigned, and anyone who may push a component can write it.
func TestCarriedArchiveIsNotBelieved(t *testing.T) {
	evil, err := artifacts.PackComponent(fstest.MapFS{artifacts.ComposeFile: {Data: []byte("services: {}\n")}}, artifacts.ComponentOptions{Name: "app-1", Version: "1.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fail error
		want codes.Code
	}{
		"the blob is there":   {nil, ""},
		"the blob is missing": {fault.ErrNotFound, codes.ComponentMissing},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
				w.Publish(t, 5, anApp(1, "web:1"))
				r := w.Start(t)
				w.Sync(t, r)
				next := anApp(1, "web:2")
				next.Components[0].Forge = func(manifest []byte) []byte {
					before, after, ok := bytes.Cut(manifest, []byte(`.tar.gz"},"data":"`))
					_, after, ok2 := bytes.Cut(after, []byte(`"`))
					if !ok || !ok2 {
						t.Fatalf("no data in %s", manifest)
					}
					return bytes.Join([][]byte{before, []byte(`.tar.gz"},"data":"` + base64.StdEncoding.EncodeToString(evil.Blobs[1].Data) + `"`), after}, nil)
				}
				w.Registry.Fail(func(request string) error {
					if strings.HasPrefix(request, "blob registry.example/plant/components/") {
						return c.fail
					}
					return nil
				})
				w.Publish(t, 6, next)
				w.Registry.Requests()
				if res := w.Sync(t, r); res.Code != c.want {
					t.Errorf("sync = %+v, want code %q", res, c.want)
				}
				if all := strings.Join(w.Registry.Requests(), "\n"); !strings.Contains(all, "blob registry.example/plant/components/") {
					t.Errorf("the blob was not asked for:\n%s", all)
				}
				if c.want == "" {
					w.Committed(t, r, 6)
				}
				if now := r.Status().Deployments[0]; len(now.Components) != 1 || len(now.Components[0].Services) != 1 {
					t.Errorf("runs %+v, want the one service of the named archive", now)
				}
			})
		})
	}
}

// What a manifest carries is kept with it: without a network, a device that starts again has all of its state, and goes back to the one before.
func TestCarriedIsKeptWithTheManifest(t *testing.T) {
	t.Run("deployments in blobs", func(t *testing.T) { carriedIsKept(t, false) })
	t.Run("deployments too", func(t *testing.T) { carriedIsKept(t, true) })
}

func carriedIsKept(t *testing.T, deployments bool) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Carries = deployments
		w.Publish(t, 5, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		w.Publish(t, 6, anApp(1, "web:2"))
		w.Registry.Requests()
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Fatalf("sync = %+v", res)
		}
		want, got := map[string]int{"resolve": 1, "manifest": 2}, map[string]int{} // the manifests of the state and of the component
		if !deployments {
			want["blob "+agenttest.Repository] = 1
		}
		for _, request := range w.Registry.Requests() {
			if kind, what, _ := strings.Cut(request, " "); kind == "blob" {
				got[kind+" "+strings.Split(what, "@")[0]]++
			} else {
				got[kind]++
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("requests %v, want %v", got, want)
		}
		w.Committed(t, r, 6)
		r.Stop(t)
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		r = w.Start(t)
		w.Committed(t, r, 6)
		if _, err := r.RollBack(t.Context(), agent.RollbackRequest{To: 5, By: "root"}); err != nil {
			t.Fatalf("RollBack = %v", err)
		}
		w.Wait(t, "generation 5 runs", func() bool {
			s := r.Status()
			return s.Running != nil && s.Running.Generation == 5 && s.Committed.Generation == 5
		})
		if hasProblem(r.Status(), codes.ContentDamaged) {
			t.Errorf("problems %+v", r.Status().Problems)
		}
	})
}
