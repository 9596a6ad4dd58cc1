package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/testenv"
)

const reporter = "STORE_TEST_REPORT_TO"

func TestMain(m *testing.M) {
	if place := os.Getenv(reporter); place != "" {
		report(place)
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, place string) *store.SQLite {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(place, "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSQLite(t *testing.T) {
	holdToContract(t, func(t *testing.T, place string) store.Store { return open(t, place) })
}

func TestFileIsForItsOwner(t *testing.T) {
	place := t.TempDir()
	s := open(t, place)
	defer s.Close()
	info, err := os.Stat(filepath.Join(place, "fleet.db"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

func TestNoDatabase(t *testing.T) {
	place := t.TempDir()
	path := filepath.Join(place, "fleet.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("this is no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, filepath.Join(place, "missing", "fleet.db"), place} {
		if s, err := store.Open(t.Context(), p, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("Open(%s) succeeded", p)
			_ = s.Close()
		}
	}
	_, err := store.Open(t.Context(), path, slog.New(slog.DiscardHandler))
	copied := store.Backup(t.Context(), path, filepath.Join(place, "copy.db"), time.Now())
	if _, err := store.Restore(t.Context(), path, filepath.Join(place, "other.db")); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Restore = %q, want ErrInvalid in one line", err)
	}
	for what, err := range map[string]error{"Open": err, "Backup": copied} {
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "not an SQLite database") || !strings.Contains(fault.Hint(err), "--database") {
			t.Errorf("%s = %v, want ErrInvalid that says what the file is, and a hint", what, err)
		}
	}
}

// Two processes on one file: "token create" while the server runs.
func TestTwoWriters(t *testing.T) {
	place := t.TempDir()
	a, b := open(t, place), open(t, place)
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	for i, s := range []*store.SQLite{a, b} {
		wg.Go(func() {
			for j := range 50 {
				if err := s.AddTokens(t.Context(), store.Token{ID: fmt.Sprintf("%d-%d", i, j), Devices: []string{"d"}, Hash: []byte{1}}); err != nil {
					t.Errorf("AddTokens: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := a.ListTokens(t.Context(), "d"); err != nil || len(all) != 100 {
		t.Errorf("ListTokens = %d, %v, want 100", len(all), err)
	}
}

func TestCancelledCall(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.PutStatus(ctx, store.Status{Device: "a", Deployment: "d", State: margo.StatePending, Body: []byte("{}")})
	if !errors.Is(err, fault.ErrTemporary) || !errors.Is(err, context.Canceled) {
		t.Errorf("PutStatus: %v, want ErrTemporary and Canceled", err)
	}
}

// report writes as fast as it can and tells each report that was accepted, until it is killed.
func report(place string) {
	ctx := context.Background()
	s, err := store.Open(ctx, filepath.Join(place, "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	for i := uint64(1); ; i++ {
		r := store.Status{
			Device: "a", Deployment: fmt.Sprintf("d%05d", i), State: margo.StateInstalled, Body: []byte("{}"),
			Stamp: store.Stamp{Epoch: "e", Sequence: i}, At: time.UnixMilli(1),
		}
		if _, err := s.PutStatus(ctx, r); err != nil {
			panic(err)
		}
		fmt.Println(i)
	}
}

// A process killed with SIGKILL in the middle of its work: every report that it answered for is there afterwards.
func TestKilledLosesNothing(t *testing.T) {
	place := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), reporter+"="+place)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			break // cut by the kill
		}
		if last = n; last == 200 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if last < 200 {
		t.Fatalf("only %d reports were accepted", last)
	}
	s := open(t, place)
	defer s.Close()
	got, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "a", Limit: 1 << 20})
	if err != nil || len(got) < last {
		t.Errorf("%d reports survived, %v, want the %d that were answered for", len(got), err, last)
	}
}

func BenchmarkPutStatus(b *testing.B) {
	s := open(b, b.TempDir())
	defer s.Close()
	body := []byte(`{"deploymentId":"a3e2f5dc-912e-494f-8395-52cf3769bc06","adoptedManifestVersion":1,"status":{"state":"installed"},"components":[]}`)
	var next sync.Mutex
	n := uint64(0)
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			next.Lock()
			n++
			seq := n
			next.Unlock()
			device := fmt.Sprintf("dev-%04d", seq%1000)
			_, err := s.PutStatus(b.Context(), store.Status{
				Device: device, By: device, Deployment: "d", State: margo.StateInstalled, Body: body,
				Stamp: store.Stamp{Epoch: "e", Sequence: seq}, At: time.UnixMilli(int64(seq)),
			})
			if err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
}

// A database whose file is deleted or replaced under it acknowledges nothing more, shows nothing, and is not healthy.
func TestFileGone(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"deleted": os.Remove,
		"replaced": func(path string) error {
			other := path + ".other"
			return errors.Join(os.WriteFile(other, nil, 0o600), os.Rename(other, path))
		},
		"log deleted": func(path string) error { return os.Remove(path + "-wal") },
	} {
		t.Run(name, func(t *testing.T) {
			place := t.TempDir()
			s := open(t, place)
			defer s.Close()
			r := store.Status{Device: "a", Deployment: "d", State: margo.StatePending, Body: []byte("{}"), At: time.Now()}
			if _, err := s.PutStatus(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := s.Health(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			if err := harm(filepath.Join(place, "fleet.db")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.PutStatus(t.Context(), r); !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) == "" {
				t.Errorf("PutStatus: %v, want ErrTemporary and a hint", err)
			}
			if _, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 1}); !errors.Is(err, fault.ErrTemporary) {
				t.Errorf("Devices: %v, want ErrTemporary", err)
			}
			testenv.Eventually(t, time.Minute, "an unhealthy answer", func() error { // one is remembered for a second
				if err := s.Health(t.Context(), time.Now()); !errors.Is(err, fault.ErrTemporary) {
					return fmt.Errorf("health: %w", err)
				}
				return nil
			})
		})
	}
}

// On a full disk nothing is acknowledged, and the health check says so; when there is room again both go on.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box := testenv.NewBox(t)
	small, err := box.NewDisk(t.Context(), 32<<20)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	disk := small.Dir
	s := open(t, disk)
	defer s.Close()
	put := func(i int) error {
		_, err := s.PutStatus(t.Context(), store.Status{
			Device: "a", Deployment: fmt.Sprint(i), State: margo.StateInstalled, Body: make([]byte, 200<<10), At: time.Now(),
		})
		return err
	}
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for ; err == nil && taken < 100; taken++ {
		err = put(taken)
	}
	if taken--; !errors.Is(err, fault.ErrTemporary) {
		t.Fatalf("after %d reports: %v", taken, err)
	}
	testenv.Eventually(t, time.Minute, "an unhealthy answer", func() error {
		if s.Health(t.Context(), time.Now()) == nil {
			return errors.New("healthy")
		}
		return nil
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "a healthy answer", func() error { return s.Health(t.Context(), time.Now()) })
	if err := put(taken); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if all, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Limit: 100}); err != nil || len(all) != taken+1 {
		t.Errorf("%d deployments, %v, want the %d that were acknowledged", len(all), err, taken+1)
	}
}
