package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/endpoint"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/testenv"
)

// pusher is a device that reports to a registry.
type pusher struct {
	t       *testing.T
	repo    *registry.Repository
	id      artifacts.DeviceID
	private *ecdsa.PrivateKey
	epoch   string
	turned  string // the transitions that it reports, JSON
}

func newPusher(t *testing.T, repo *registry.Repository, id artifacts.DeviceID, keys string) *pusher {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, id.Tag()+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &pusher{t, repo, id, private, "0b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11", "null"}
}

// push reports deployments in their states, under a tag; it returns the report's digest.
func (p *pusher) push(tag string, number uint64, at time.Time, states ...margo.State) digest.Digest {
	p.t.Helper()
	g := &artifacts.CurrentGeneration{Generation: number, Digest: digest.FromString("state")}
	c := &artifacts.CurrentState{
		Device: p.id, Epoch: p.epoch, Counter: number, Sequence: number, Time: at.UTC().Truncate(time.Second), Every: 3600, Repository: "r.example/state",
		Accepted: g, Running: g, Committed: g, Deployments: []artifacts.CurrentDeployment{},
		Capabilities: json.RawMessage(`{"properties":{"id":"` + string(p.id) + `","vendor":"v","modelNumber":"m","serialNumber":"s"},"x-longshore-extensions":{"agentVersion":"1.2.3","reportIntervalSeconds":300,"transitions":` + p.turned + `}}`),
	}
	for i, s := range states {
		if s != "" {
			c.Deployments = append(c.Deployments, artifacts.CurrentDeployment{
				ID: "a3e2f5dc-912e-494f-8395-52cf3769bc0" + string(rune('0'+i)), Generation: number, State: s, Since: c.Time,
				Components: []artifacts.CurrentComponent{{Name: "web", State: s, Since: c.Time, Images: []artifacts.CurrentImage{}}},
			})
		}
	}
	statement, err := c.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	bundle, err := signing.SignStatement(statement, p.private)
	if err != nil {
		p.t.Fatal(err)
	}
	a, err := artifacts.PackCurrentState(c, bundle)
	if err == nil {
		_, err = release.Publish(p.t.Context(), p.repo, a, release.PublishOptions{Tags: []string{artifacts.CurrentTag(tag)}})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return a.Descriptor.Digest
}

// Reports of a registry get into the store once, in order; an old one that is shown again, and one of another device, do not.
func TestCollect(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(t.Context(), server.Host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	db := filepath.Join(dir, "fleet.db")
	press, other := newPusher(t, repo, "press-07", dir), newPusher(t, repo, "press-08", dir)
	var errs string
	collect := func(want int, changed, missing, failed int) collected {
		t.Helper()
		var code int
		var out string
		code, out, errs = command(t, "collect", "--database", db, "--keys", dir, "-o", "json", repo.Name())
		var r collected
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != want || r.Devices != 2 || r.Changed != changed || r.Missing != missing || len(r.Failed) != failed {
			t.Errorf("collect = %d %+v, %v, want %d: %d changed, %d missing, %d failed\n%s", code, r, err, want, changed, missing, failed, errs)
		}
		return r
	}
	states := func() (string, store.Device) {
		t.Helper()
		s, err := store.Open(t.Context(), db, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := s.Device(t.Context(), "press-07")
		if err != nil {
			t.Fatal(err)
		}
		list, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "press-07", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, x := range list {
			out = append(out, string(x.State))
		}
		return strings.Join(out, " "), d
	}
	now := time.Now()
	collect(0, 0, 2, 0)
	press.push("press-07", 3, now.Add(-2*time.Hour), margo.StateInstalled, margo.StateInstalling)
	collect(0, 1, 1, 0)
	collect(0, 0, 1, 0) // the same once more
	got, d := states()
	if got != "installed installing" || d.Interval != time.Hour || time.Since(d.LastHeard) < time.Hour {
		t.Errorf("states %q, heard %v, interval %v", got, d.LastHeard, d.Interval)
	}
	press.push("press-07", 5, now.Add(-time.Hour), "", margo.StateFailed)
	if r := collect(0, 1, 1, 0); r.Skipped != 1 {
		t.Errorf("%+v, want that report 4 was not seen", r)
	}
	if got, _ := states(); got != "removed failed" {
		t.Errorf("states %q: the first deployment is gone, the second failed", got)
	}
	press.push("press-07", 3, now.Add(-2*time.Hour), margo.StateInstalled, margo.StateInstalling) // the old one again
	if collect(6, 0, 1, 1); !strings.Contains(errs, "report 3 of press-07, and report 5 was seen before") {
		t.Errorf("an old report: %s", errs)
	}
	if got, _ := states(); got != "removed failed" {
		t.Errorf("states %q after an old report", got)
	}
	other.push("press-07", 9, now, margo.StateInstalled)
	if collect(5, 0, 1, 1); !strings.Contains(errs, "signature invalid") {
		t.Errorf("a foreign report: %s", errs)
	}
	press.epoch = "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11" // a new database
	press.push("press-07", 1, now, margo.StateInstalled, margo.StateInstalled)
	collect(0, 1, 1, 0)
	press.epoch = "0b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11"
	press.push("press-07", 99, now, margo.StateFailed, margo.StateFailed) // of the database before
	if collect(6, 0, 1, 1); !strings.Contains(errs, "a database that the device has replaced") {
		t.Errorf("a report of the old database: %s", errs)
	}
	if got, _ := states(); got != "installed installed" {
		t.Errorf("states %q after a report of the old database", got)
	}

	// What a device posts beside that keeps its order, and its shorter interval.
	s, err := store.Open(t.Context(), db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	posted := store.Capabilities{
		Device: "press-08", By: "press-08", At: now, Stamp: store.Stamp{Epoch: other.epoch, Sequence: 7},
		Body: []byte(`{"properties":{"id":"press-08","vendor":"v","modelNumber":"m","serialNumber":"s"},"x-longshore-extensions":{"reportIntervalSeconds":300}}`),
	}
	status.Summarize(&posted)
	if _, err := s.PutCapabilities(t.Context(), posted); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	press.epoch = "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11"
	press.push("press-07", 1, now, margo.StateInstalled, margo.StateInstalled)
	other.push("press-08", 6, now) // is older than what was posted
	collect(0, 0, 0, 0)
	other.push("press-08", 8, now)
	collect(0, 1, 0, 0)
	if s, err = store.Open(t.Context(), db, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if d, err := s.Device(t.Context(), "press-08"); err != nil || d.Interval != 5*time.Minute {
		t.Errorf("press-08 reports every %v, %v", d.Interval, err)
	}
	for _, line := range []string{"collect", "collect --keys " + dir, "collect " + repo.Name()} {
		if code, _, errs := command(t, append(strings.Fields(line), "--database", db)...); code != 2 {
			t.Errorf("%s = %d\n%s", line, code, errs)
		}
	}
	if code, _, errs := command(t, "collect", "--database", db, "--keys", t.TempDir(), repo.Name()); code != 4 || !strings.Contains(errs, "longshore-agent key") {
		t.Errorf("without keys = %d\n%s", code, errs)
	}
}

// What was carried on a stick gets into the store without a registry, once.
func TestCollectFromAStick(t *testing.T) {
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	dir, stick := t.TempDir(), "oci-layout:"+filepath.Join(t.TempDir(), "reports")
	repo, err := client.OpenName(t.Context(), stick)
	if err != nil {
		t.Fatal(err)
	}
	newPusher(t, repo, "press-07", dir).push("press-07", 3, time.Now(), margo.StateInstalled)
	for _, want := range []string{"1 device: 1 with a new report", "1 device: 0 with a new report"} {
		if code, out, errs := command(t, "collect", "--database", filepath.Join(dir, "fleet.db"), "--keys", dir, stick); code != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("collect = %d, %s%s, want %s", code, out, errs, want)
		}
	}
}

// A registry that shows an old report is told, also if media have a newer one. The file with the newest reports is written when it
// changes, and told if it cannot be read.
func TestCollectSeen(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	dir, stick := t.TempDir(), "oci-layout:"+filepath.Join(t.TempDir(), "reports")
	repo, err := client.OpenName(t.Context(), server.Host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	media, err := client.OpenName(t.Context(), stick)
	if err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(dir, "fleet.db")
	press := newPusher(t, repo, "press-07", dir)
	collect := func(want int, out, errs string) {
		t.Helper()
		if code, said, warned := command(t, "collect", "--database", db, "--keys", dir, repo.Name(), stick); code != want || !strings.HasPrefix(said, "1 device: "+out) || !strings.Contains(warned, errs) || errs == "" && warned != "" {
			t.Errorf("collect = %d, %s%s, want %d, %s %s", code, said, warned, want, out, errs)
		}
	}
	press.push("press-07", 3, time.Now().Add(-2*time.Hour), margo.StateInstalling)
	collect(0, "1 with a new report", "")
	written := func() time.Time {
		t.Helper()
		info, err := os.Stat(db + ".seen")
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	before := time.Now().Add(-time.Hour)
	if err := os.Chtimes(db+".seen", before, before); err != nil {
		t.Fatal(err)
	}
	before = written()
	collect(0, "0 with a new report", "")
	if now := written(); !now.Equal(before) {
		t.Errorf("the file was written at %v, and nothing has changed", now)
	}
	press.push("press-07", 2, time.Now().Add(-3*time.Hour), margo.StateInstalled)
	press.repo = media
	press.push("press-07", 5, time.Now().Add(-time.Hour), margo.StateInstalled)
	collect(6, "1 with a new report", "report 2 of press-07, and report 3 was seen before")
	if err := os.WriteFile(db+".seen", []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	collect(0, "0 with a new report", "fleet.db.seen")
}

// Of several repositories the newest report of a device counts, wherever it is; one that its key has not signed hides no other.
func TestCollectFromSeveral(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var names []string
	var repos []*registry.Repository
	for _, name := range []string{"/plant/state", "/plant/reports"} {
		repo, err := client.OpenName(t.Context(), server.Host+name)
		if err != nil {
			t.Fatal(err)
		}
		repos, names = append(repos, repo), append(names, repo.Name())
	}
	keys, now := t.TempDir(), time.Now()
	press, other := newPusher(t, repos[0], "press-07", keys), newPusher(t, repos[0], "press-08", keys)
	press.push("press-07", 1, now.Add(-2*time.Hour), margo.StateInstalling)
	press.push("press-08", 1, now, margo.StateInstalling) // in the name of the other
	press.repo, other.repo = repos[1], repos[1]
	press.push("press-07", 2, now.Add(-time.Hour), margo.StateInstalled)
	other.push("press-08", 1, now.Add(-time.Hour), margo.StateInstalled)
	for _, order := range [][]string{names, {names[1], names[0]}} {
		db := filepath.Join(t.TempDir(), "fleet.db")
		code, out, errs := command(t, append([]string{"collect", "--database", db, "--keys", keys, "-o", "json"}, order...)...)
		var r collected
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 5 || r.Changed != 2 || len(r.Failed) != 1 {
			t.Errorf("collect %v = %d %+v, %v, want two changed and a report that is not verified\n%s", order, code, r, err, errs)
		}
		s, err := store.Open(t.Context(), db, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"press-07", "press-08"} {
			list, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: id, Limit: 10})
			if err != nil || len(list) != 1 || list[0].State != margo.StateInstalled {
				t.Errorf("%v: %s is %+v, %v", order, id, list, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Reports on media are handed in to a running server, in any order, each once; one that is old, of another device or of nobody changes nothing.
func TestReportsAreHandedIn(t *testing.T) {
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	keys := t.TempDir()
	stick := func() *registry.Repository {
		t.Helper()
		repo, err := client.OpenName(t.Context(), "oci-layout:"+filepath.Join(t.TempDir(), "reports"))
		if err != nil {
			t.Fatal(err)
		}
		return repo
	}
	first, second, oldest := stick(), stick(), stick()
	press, child, thief := newPusher(t, first, "press-07", keys), newPusher(t, first, "press-07/sensor", keys), newPusher(t, first, "press-08", t.TempDir())
	now := time.Now()
	press.push("press-07", 3, now.Add(-2*time.Hour), margo.StateInstalling)
	child.push(child.id.Tag(), 1, now.Add(-2*time.Hour), margo.StateInstalled)
	thief.push("press-08", 1, now, margo.StateInstalled)                     // the server has no key of it
	press.repo, press.epoch = oldest, "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11" // a database before
	press.push("press-07", 99, now.Add(-3*time.Hour), margo.StateFailed)
	press.repo, press.epoch = second, child.epoch
	press.push("press-07", 5, now.Add(-time.Hour), margo.StateInstalled)
	url, _, stop := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"), "--report-keys", keys)
	defer stop()
	e, err := endpoint.New(endpoint.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	handed := func(from *registry.Repository) string {
		t.Helper()
		all, err := site.HandReports(t.Context(), from, nil, e.Hand)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range all {
			out = append(out, string(r.Device)+" "+r.Outcome)
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	for _, tt := range []struct {
		from *registry.Repository
		want string
	}{
		{first, "press-07 carried, press-07/sensor carried, press-08 invalid"},
		{first, "press-07 there, press-07/sensor there, press-08 invalid"},
		{oldest, "press-07 there"},
		{second, "press-07 carried"},
		{oldest, "press-07 there"},
		{first, "press-07 there, press-07/sensor there, press-08 invalid"}, // the older stick
	} {
		if got := handed(tt.from); got != tt.want {
			t.Errorf("handed in: %s, want %s", got, tt.want)
		}
	}
	seen, err := e.Look(t.Context(), []artifacts.DeviceID{"press-07", "press-08"})
	if err != nil || seen["press-08"] != nil || seen["press-07"] == nil || len(seen["press-07"].Deployments) != 1 || seen["press-07"].Deployments[0].State != margo.StateInstalled {
		t.Errorf("the endpoint shows %+v, %v", seen["press-07"], err)
	}
	for name, body := range map[string]string{"nothing": "", "not a bundle": "{}", "too large": strings.Repeat(" ", artifacts.MaxCurrentState+1)} {
		if stored, _, err := e.Hand(t.Context(), []byte(body)); !errors.Is(err, fault.ErrInvalid) || stored {
			t.Errorf("%s: %v, %v", name, stored, err)
		}
	}
	resp, err := http.Get(url + "/fleet/v1/reports")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", resp.Status)
	}
	without, _, end := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"))
	defer end()
	other, err := endpoint.New(endpoint.Options{URL: without})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if all, err := site.HandReports(t.Context(), first, nil, other.Hand); !errors.Is(err, fault.ErrUnsupported) || len(all) != 0 {
		t.Errorf("a server without --report-keys: %+v, %v", all, err)
	}
}

// An interrupt while a report is handed in ends the run, also if the media still answer.
func TestHandingInIsInterrupted(t *testing.T) {
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stick, err := client.OpenName(t.Context(), "oci-layout:"+filepath.Join(t.TempDir(), "reports"))
	if err != nil {
		t.Fatal(err)
	}
	newPusher(t, stick, "press-07", t.TempDir()).push("press-07", 1, time.Now(), margo.StateInstalled)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = site.HandReports(ctx, stick, nil, func(context.Context, []byte) (bool, string, error) {
		cancel()
		return false, "", fault.ErrNotFound // its gateway may come later
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Transitions that are missing between two reports are told once, by collect and to who hands the report in.
func TestMissingTransitionsAreTold(t *testing.T) {
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	keys, dir, now := t.TempDir(), "oci-layout:"+filepath.Join(t.TempDir(), "reports"), time.Now()
	stick, err := client.OpenName(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	url, out, stop := serve(t, "--database", filepath.Join(t.TempDir(), "fleet.db"), "--report-keys", keys)
	defer stop()
	e, err := endpoint.New(endpoint.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	db, press := filepath.Join(t.TempDir(), "fleet.db"), newPusher(t, stick, "press-07", keys)
	for _, tt := range []struct {
		number uint64
		turned string
		told   bool
	}{
		{10, "null", false},
		{30, `{"after":20,"list":[{"sequence":25,"at":"2026-11-20T12:00:00Z","deployment":"a3e2f5dc-912e-494f-8395-52cf3769bc00","generation":1,"state":"failed"}]}`, true},
		{30, "", false}, // the same
	} {
		if press.turned = tt.turned; tt.turned != "" {
			press.push("press-07", tt.number, now.Add(time.Duration(tt.number)*time.Second-time.Hour), margo.StateInstalled)
		}
		all, err := site.HandReports(t.Context(), stick, nil, e.Hand)
		if err != nil || len(all) != 1 || strings.Contains(all[0].Note, "missing") != tt.told {
			t.Errorf("report %d handed in: %+v, %v", tt.number, all, err)
		}
		if code, text, errs := command(t, "collect", "--database", db, "--keys", keys, dir); code != 0 || strings.Contains(text, "press-07: transitions of status are missing before report 30") != tt.told {
			t.Errorf("collect = %d %s\n%s", code, text, errs)
		}
	}
	if n := strings.Count(out.String(), "transitions of status are missing"); n != 1 {
		t.Errorf("told %d times by the server:\n%s", n, out)
	}
}

// With --every collect goes on until it is stopped: it takes a report that comes later, and tells of a bad one without an end.
func TestCollectEvery(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(t.Context(), server.Host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	keys, db := t.TempDir(), filepath.Join(t.TempDir(), "fleet.db")
	press, other := newPusher(t, repo, "press-07", keys), newPusher(t, repo, "press-08", keys)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, code := &log{}, make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"longshore-fleet", "collect", "--database", db, "--keys", keys, "--every", "20ms", repo.Name()}, nil, io.Discard, out)
	}()
	said := func(what string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, what, func() error {
			if !strings.Contains(out.String(), what) {
				return errors.New(out.String())
			}
			return nil
		})
	}
	said("devices=2 changed=0 missing=2")
	press.push("press-07", 1, time.Now(), margo.StateInstalled)
	said("devices=2 changed=1 missing=1")
	other.push("press-07", 2, time.Now(), margo.StateInstalled)
	said("failed=1")
	press.push("press-07", 4, time.Now(), margo.StateInstalled)
	said("changed=1 missing=1 skipped=2 failed=0")
	stop()
	if got := <-code; got != 0 {
		t.Errorf("exit %d after it was stopped\n%s", got, out)
	}
}
