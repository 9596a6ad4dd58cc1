package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// shelf stands for the registry: it keeps what was published, oldest first, and what was tried.
type shelf struct {
	mu    sync.Mutex
	tried []uint64 // counters
	all   []*artifacts.CurrentState
	fail  error
}

func (*shelf) Name() string { return "registry.example/plant/state:press-07.current" }

func (s *shelf) Publish(_ context.Context, c *artifacts.CurrentState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	statement, err := c.Encode() // what is published must parse
	if err != nil {
		return err
	}
	back, err := artifacts.ParseCurrentState("report", statement)
	if err != nil {
		return err
	}
	s.tried = append(s.tried, c.Counter)
	if s.fail != nil {
		return s.fail
	}
	s.all = append(s.all, back)
	return nil
}

func (s *shelf) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// attempts are the counters of what was pushed or tried to be.
func (s *shelf) attempts() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tried)
}

func (s *shelf) published() []*artifacts.CurrentState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// rising checks that no number was given twice.
func (s *shelf) rising(t *testing.T) {
	t.Helper()
	all := s.published()
	for i := 1; i < len(all); i++ {
		if all[i].Counter <= all[i-1].Counter || all[i].Sequence <= all[i-1].Sequence || all[i].Epoch != all[0].Epoch {
			t.Errorf("report %d/%d of %s came after %d/%d of %s", all[i].Counter, all[i].Sequence, all[i].Epoch, all[i-1].Counter, all[i-1].Sequence, all[i-1].Epoch)
		}
	}
}

func publishing(w *agenttest.World, s *shelf) {
	w.Edit = func(o *agent.Options) { o.Publisher, o.PublishInterval = s, time.Hour }
}

func TestCurrentStateIsPublished(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		s := &shelf{}
		publishing(w, s)
		first := w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		synctest.Wait()
		all := s.published()
		last := all[len(all)-1]
		image := w.Image("web:1")
		if len(last.Deployments) != 1 || last.Running == nil || last.Running.Digest != first || last.Committed == nil || last.Committed.Generation != 1 {
			t.Fatalf("current state %+v", last)
		}
		d := last.Deployments[0]
		if d.ID != anApp(1, "").DeploymentID() || d.State != margo.StateInstalled || d.Since.IsZero() || len(d.Components) != 1 {
			t.Fatalf("deployment %+v", d)
		}
		c := d.Components[0]
		if c.Digest.Validate() != nil || len(c.Images) != 1 || c.Images[0].Containers != 1 || !strings.HasSuffix(c.Images[0].Image, "@"+image.Digest.String()) {
			t.Errorf("component %+v, want the image %s once", c, image.Digest)
		}
		var about struct {
			Extra status.Extra `json:"x-longshore-extensions"`
		}
		if err := json.Unmarshal(last.Capabilities, &about); err != nil || about.Extra.CommittedGeneration != 1 {
			t.Errorf("capabilities %s: %v", last.Capabilities, err)
		}
		if got := r.Status().CurrentReport; got == nil || got.Counter != last.Counter || got.LastError != "" || got.Reference != s.Name() {
			t.Errorf("status %+v", got)
		}

		// Quiet: once an hour, with a number and a time of its own.
		before := len(s.published())
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if n := len(s.published()) - before; n < 10 || n > 13 {
			t.Errorf("%d reports in ten quiet hours, want about one an hour", n)
		}
		s.rising(t)

		// A container that ends, and a refused state.

		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil {
			t.Fatal(err)
		}
		w.Registry.Push(agenttest.Repository, w.State(t, 2, nil, anApp(1, "web:2")), agenttest.Device.Tag()) // unsigned
		w.Sync(t, r)
		time.Sleep(time.Minute)
		synctest.Wait()
		all = s.published()
		if last = all[len(all)-1]; last.Refused == nil || last.Refused.Digest.Validate() != nil || last.Refused.Code != string(codes.SignatureMissing) || last.Refused.Message == "" {
			t.Errorf("refusal %+v", last.Refused)
		}
		s.rising(t)
	})
}

// The registry is away: the loop goes on, the same report is tried again with its number, a newer one takes its place.
func TestCurrentStateWaitsForTheRegistry(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		s := &shelf{}
		s.set(fmt.Errorf("push: %w", fault.ErrTemporary))
		publishing(w, s)
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		w.Committed(t, r, 1)
		if got := r.Status().CurrentReport; got.Counter != 0 || got.LastError == "" || got.NextTry.IsZero() || !hasProblem(r.Status(), codes.ReportUnpublished) {
			t.Errorf("status %+v", got)
		}
		if tried := s.attempts(); len(tried) < 6 || len(tried) > 30 || tried[len(tried)-1] != tried[len(tried)-2] {
			t.Errorf("tried %v in half an hour, want one number again and again", tried)
		}
		time.Sleep(24 * time.Hour)
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		s.set(nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		all := s.published()
		if len(all) == 0 || all[0].Committed.Generation != 2 || hasProblem(r.Status(), codes.ReportUnpublished) {
			t.Fatalf("published %+v, want the newest alone", all)
		}
		if age := time.Since(all[0].Time); age > 2*time.Hour {
			t.Errorf("after a day without the registry the first report is %v old", age)
		}
		s.rising(t)
	})
}

// Numbers go on after a restart, above all that a fleet endpoint was told.
func TestCurrentStateNumbersGoOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		s := &shelf{}
		publishing(w, s)
		for generation := range 3 {
			w.Publish(t, uint64(generation+1), anApp(1, fmt.Sprintf("web:%d", 2-generation%2)))
			r := w.Start(t)
			w.Sync(t, r)
			time.Sleep(time.Minute)
			synctest.Wait()
			r.Stop(t)
			all := s.published()
			told := uint64(0)
			for _, x := range w.Fleet.Reports() {
				told = max(told, x.Sequence)
			}
			if last := all[len(all)-1]; last.Sequence <= told || last.Committed.Generation != uint64(generation+1) {
				t.Errorf("the last report is number %d, after %d was told to the endpoint: %+v", last.Sequence, told, last)
			}
		}
		s.rising(t)
		st, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device)})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if err := st.Update(func(tx *store.Tx) error {
			counter, _, err := tx.NumberCurrent()
			if all := s.published(); counter <= all[len(all)-1].Counter {
				t.Errorf("counter %d is given again", counter)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// A device reaches only a registry, and its reports are not read for weeks: every transition is in the newest report, in order, across restarts. A
// report has a bounded number of them, and says where they begin. They have the numbers of the reports to a fleet endpoint, if there is one.
func TestTransitionsAreInTheReport(t *testing.T) {
	for _, both := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
			s, e := &shelf{}, &answering{}
			w.Edit = func(o *agent.Options) {
				if o.Publisher, o.PublishInterval = s, time.Hour; both {
					o.Reporter = e
				}
			}
			line := anApp(1, "web:1")
			w.Publish(t, 1, line)
			r := w.Start(t)
			w.Sync(t, r)
			want := strings.Fields("pending@1 installing@1 installed@1")
			last := func() (artifacts.CurrentTransitions, []string) {
				t.Helper()
				time.Sleep(time.Minute)
				synctest.Wait()
				all := s.published()
				newest := all[len(all)-1]
				turned := newest.Transitions()
				if n := len(newest.Capabilities); n > 24<<10 {
					t.Errorf("%d transitions in %d bytes of capabilities", len(turned.List), n)
				}
				var out []string
				for i, x := range turned.List {
					out = append(out, fmt.Sprintf("%s@%d", x.State, x.Generation))
					if x.Deployment != line.DeploymentID() || x.Sequence >= newest.Sequence || (x.Error != nil) != (x.State == margo.StateFailed) || i > 0 && x.At.Before(turned.List[i-1].At) {
						t.Errorf("transition %+v", x)
					}
					if both && !slices.ContainsFunc(e.taken, func(r store.Report) bool { return r.Sequence == x.Sequence && r.Kind == store.KindStatus }) {
						t.Errorf("the endpoint has no report %d", x.Sequence)
					}
				}
				return turned, out
			}
			s.set(fmt.Errorf("push: %w", fault.ErrTemporary))
			for generation := uint64(2); generation < 20; generation++ {
				if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil { // it has no restart policy
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				want = append(want, fmt.Sprintf("failed@%d", generation-1))
				line = anApp(1, fmt.Sprintf("web:%d", 2-generation%2))
				w.Publish(t, generation, line)
				w.Sync(t, r)
				time.Sleep(time.Hour)
				for _, state := range []string{"pending", "installing", "installed"} {
					want = append(want, fmt.Sprintf("%s@%d", state, generation))
				}
				r.Stop(t)
				r = w.Start(t)
				if generation != 10 {
					continue
				}
				s.set(nil)
				if turned, got := last(); turned.After != 0 || !slices.Equal(got, want) {
					t.Errorf("after %d: %v, want %v", turned.After, got, want)
				}
			}
			turned, got := last()
			if len(got) != artifacts.MaxTransitions || !slices.Equal(got, want[len(want)-len(got):]) || turned.After == 0 || turned.After >= turned.List[0].Sequence {
				t.Errorf("%d after %d: %v, want the end of %v", len(got), turned.After, got, want)
			}
			s.rising(t)
		})
	}
}
