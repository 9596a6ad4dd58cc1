package agent_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestCapabilitiesDoNotBlockStatuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		tries := 0
		w.Fleet.Fail(func(r store.Report) error {
			if r.Kind == store.KindCapabilities {
				tries++
				return fmt.Errorf("gateway not found: %w: %w", fault.ErrTemporary, fault.ErrNotFound)
			}
			return nil
		})
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Hour)
		synctest.Wait()
		id := anApp(1, "web:1").DeploymentID()
		if got := fmt.Sprint(w.States(t, id)); got != "[pending@1 installing@1 installed@1]" {
			t.Errorf("states %s", got)
		}
		if tries < 12 || tries > 30 {
			t.Errorf("capabilities were tried %d times in an hour, want about one in 5 minutes", tries)
		}
		if o := r.Status().Outbox; o.Depth != 1 || o.LastError == "" || !hasProblem(r.Status(), codes.FleetUnreachable) {
			t.Errorf("outbox %+v", o)
		}
		if err := m.Exit(w.Observe(t)["app-1/web"].ID, 1); err != nil { // told by a status behind the capabilities
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if got := fmt.Sprint(w.States(t, id)); got != "[pending@1 installing@1 installed@1 failed@1]" {
			t.Errorf("states %s", got)
		}
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		w.Fleet.Fail(nil)
		time.Sleep(10 * time.Minute)
		if got := w.Extra(t).CommittedGeneration; got != 2 || r.Status().Outbox.Depth != 0 || hasProblem(r.Status(), codes.FleetUnreachable) {
			t.Errorf("the fleet endpoint knows of generation %d, outbox %+v", got, r.Status().Outbox)
		}
	})
}

func TestStatusesKeepTheirOrder(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Fleet.Fail(func(r store.Report) error {
			if r.Kind == store.KindStatus {
				return fmt.Errorf("not yet: %w: %w", fault.ErrTemporary, fault.ErrNotFound)
			}
			return nil
		})
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Hour)
		if got := w.States(t, anApp(1, "web:1").DeploymentID()); len(got) != 0 {
			t.Errorf("states %v", got)
		}
		w.Fleet.Fail(nil)
		time.Sleep(10 * time.Minute)
		if got := fmt.Sprint(w.States(t, anApp(1, "web:1").DeploymentID())); got != "[pending@1 installing@1 installed@1]" {
			t.Errorf("states %s", got)
		}
	})
}

// A device whose reports the endpoint has no room for is heard by its attempts: they come within three report intervals.
func TestRefusedReportsAreTriedWithinTheInterval(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.ReportInterval = time.Minute }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		var at []time.Time
		w.Fleet.Fail(func(r store.Report) error {
			at = append(at, time.Now())
			if r.Kind == store.KindStatus {
				return fault.WithRetryAfter(fmt.Errorf("the most bytes that one may have: %w", fault.ErrTemporary), time.Minute)
			}
			return nil
		})
		w.Sync(t, r)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(at) < 30 {
			t.Fatalf("%d attempts in an hour", len(at))
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap > 2*time.Minute {
				t.Errorf("attempt %d came %v after the one before", i, gap)
			}
		}
	})
}

// An endpoint that asks for the same pause each time gets it, also after many failures.
func TestReportsAtASteadyPace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		tries := 0
		w.Fleet.Fail(func(store.Report) error {
			tries++
			return fault.WithSteady(fault.WithRetryAfter(fmt.Errorf("busy: %w", fault.ErrTemporary), 20*time.Second))
		})
		w.Sync(t, r)
		time.Sleep(time.Hour)
		synctest.Wait()
		if tries < 170 || tries > 200 { // three a minute; the pauses of the device's own growth would be 12 an hour
			t.Errorf("%d tries in an hour", tries)
		}
	})
}

// TestAfterAGapEverythingIsToldOnceMore: what codes say of reports-lost.
func TestAfterAGapEverythingIsToldOnceMore(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		r.Stop(t)
		s, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device), OutboxLimit: 2})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Update(func(tx *store.Tx) error {
			for range 4 {
				if _, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: anApp(1, "").DeploymentID(), Body: []byte("{}"), At: time.Now()}); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		w.Fleet.Fail(func(r store.Report) error {
			count[r.Kind+" "+r.Subject]++
			if string(r.Body) == "{}" {
				return fault.ErrInvalid // dropped: it is none
			}
			return nil
		})
		r = w.Start(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, id := range []string{"status " + anApp(2, "web:1").DeploymentID(), "capabilities " + string(agenttest.Device)} {
			if n := count[id]; n < 1 || n > 2 { // a start tells the capabilities, too
				t.Errorf("%s was told %d times after the gap", id, n)
			}
		}
		if n := count["status "+anApp(1, "").DeploymentID()]; n != 3 {
			t.Errorf("the deployment with lost reports was told %d times, want the 2 kept and once more", n)
		}
		if o := r.Status().Outbox; o.Depth != 0 || o.Lost != 2 {
			t.Errorf("outbox %+v", o)
		}
	})
}

// A device that has nothing to report is heard within its report interval all the same: its capabilities are sent once more,
// with the same number, and the interval that it keeps is in them.
func TestReportsWithinTheInterval(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.ReportInterval = 5 * time.Minute }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		if got := w.Extra(t).ReportIntervalSeconds; got != 300 {
			t.Errorf("the device says that it reports every %d s", got)
		}
		begun := time.Now()
		var at []time.Time
		var numbers []uint64
		w.Fleet.Fail(func(r store.Report) error {
			at, numbers = append(at, time.Now()), append(numbers, r.Sequence)
			if since := time.Since(begun); since > 20*time.Minute && since < 40*time.Minute {
				return fault.ErrTemporary
			}
			return nil
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(at) < 12 {
			t.Fatalf("%d reports in an hour", len(at))
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap > 6*time.Minute || numbers[i] != numbers[0] {
				t.Errorf("report %d came %v after the one before, as number %d, want %d", i, gap, numbers[i], numbers[0])
			}
		}
		if o := r.Status().Outbox; o.Depth != 0 {
			t.Errorf("outbox %+v", o)
		}
	})
}

// What an endpoint lost of the reports, as by a restored backup, it gets again within the interval of full reports, when nothing changes.
func TestEverythingIsReportedWithinAnInterval(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.ReportInterval, o.FullInterval = 5*time.Minute, 6*time.Hour }
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		if got := w.Extra(t).FullIntervalSeconds; got != 6*3600 {
			t.Errorf("the device says that it reports everything each %d s", got)
		}
		if due := r.Status().Outbox.NextDue; due.Before(time.Now()) || due.After(time.Now().Add(5*time.Minute)) {
			t.Errorf("the next report is due at %v", due)
		}
		count := map[string]int{}
		w.Fleet.Fail(func(r store.Report) error {
			count[r.Kind+" "+r.Subject]++
			return nil
		})
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		for _, n := range []int{1, 2} {
			if got := count["status "+anApp(n, "").DeploymentID()]; got < 4 || got > 6 {
				t.Errorf("deployment %d was reported %d times in a quiet day, want about every 6 hours", n, got)
			}
		}
		w.Fleet.Fail(func(store.Report) error { return fault.ErrTemporary }) // what waits does not grow by it
		time.Sleep(7 * 24 * time.Hour)
		synctest.Wait()
		if o := r.Status().Outbox; o.Depth > 3 || o.Lost != 0 {
			t.Errorf("outbox after a week without an endpoint: %+v", o)
		}
	})
}

// An endpoint that lost its database answers the device's next capabilities as those of a new device, and is told everything again.
func TestAnEndpointThatForgotIsToldEverything(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) { o.ReportInterval = 5 * time.Minute }
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		for range 2 {
			w.Fleet.Forget()
			time.Sleep(2 * time.Hour) // nothing changes on the device
			synctest.Wait()
			for _, n := range []int{1, 2} {
				if got := fmt.Sprint(w.States(t, anApp(n, "").DeploymentID())); got != "[installed@1]" {
					t.Errorf("deployment %d was reported as %s, want installed once", n, got)
				}
			}
			if o := r.Status().Outbox; o.Depth != 0 || o.Lost != 0 {
				t.Errorf("outbox %+v", o)
			}
		}
	})
}
