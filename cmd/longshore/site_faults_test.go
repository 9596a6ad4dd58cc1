package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A plan has the trust policies that it is asked for, and names a component or an image that its registry does not have any more; the
// sum of the rest is shown. A mirror copies nothing without the component, and no state without the image.
func TestSitePlanOfWhatIsMissing(t *testing.T) {
	for missing, unsent := range map[string]string{"plant/components/line-monitor": "/manifests/", "library/caddy": "/plant/state/manifests/"} {
		t.Run(missing, func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.stock()
			there := s.site(testenv.Distribution)
			const trust = host + "/plant/trust"
			s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "policy.yaml", trust)
			s.do(outcome.OK, "trust", "push", "-q", "--key", "root.key", "policy.yaml", trust)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			plan := func(want int) (r sitePlanResult) {
				t.Helper()
				code, out, errs := s.try("site", "plan", "-o", "json", "--trust", trust, states, siteHost)
				if err := json.Unmarshal([]byte(out), &r); err != nil || code != want || code == outcome.NotFound && !strings.Contains(errs, "  hint: push it again, with the same digest") {
					t.Fatalf("exit %d, want %d: %v\n%s", code, want, err, errs)
				}
				return r
			}
			kinds := map[artifacts.Kind]int{}
			for _, a := range plan(outcome.OK).Artifacts {
				kinds[a.Kind]++
				if a.Kind == artifacts.KindTrust && (a.Repository != trust || a.Lacks != a.Bytes || a.Referrers != 1) {
					t.Errorf("the policy: %+v", a)
				}
			}
			if kinds[artifacts.KindTrust] != 1 || kinds[artifacts.KindState] != 1 || kinds[artifacts.KindComponent] != 1 || kinds[artifacts.KindImage] != 2 {
				t.Errorf("the plan has %v", kinds)
			}
			repo := opened(t, s.server.Reference(missing))
			tags, err := repo.Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var gone digest.Digest
			for _, tag := range tags {
				if tag != "1.4.0" && tag != "2.10" {
					continue
				}
				d, err := repo.Resolve(t.Context(), tag)
				if err == nil {
					err = repo.RemoveManifest(t.Context(), d.Digest)
				}
				if err != nil {
					t.Fatal(err)
				}
				gone = d.Digest
			}
			r := plan(outcome.NotFound)
			if len(r.Problems) == 0 || !strings.Contains(r.Problems[0], missing+"@"+gone.String()) || r.Bytes == 0 {
				t.Errorf("problems %q, %d bytes", r.Problems, r.Bytes)
			}
			if once := slices.Compact(slices.Sorted(slices.Values(r.Problems))); !slices.Equal(r.Problems, once) {
				t.Errorf("problems %q, want each once, sorted", r.Problems)
			}
			if code, _, errs := s.try("mirror", releaseKeyPublic, states, siteHost); code != outcome.NotFound || !strings.Contains(errs, missing) {
				t.Errorf("mirror: exit %d, %s", code, errs)
			}
			if n := len(there.Faults.Requests("PUT", unsent)); n != 0 {
				t.Errorf("%d manifests were sent to the site's %s", n, unsent)
			}
		})
	}
}

// Outside of its hours a site command ends with --no-wait, and moves nothing; within them it runs.
func TestSiteWindow(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	for _, args := range [][]string{
		{"mirror", releaseKeyPublic, "--host-paths", states, siteHost}, {"import", releaseKeyPublic, "stick", siteHost}, {"export", releaseKeyPublic, states, "other"},
	} {
		at := func(hour int) (code int, stderr string) {
			var out, errs bytes.Buffer
			p := testProgram(&out, &errs)
			p.now, p.lookup = func() time.Time { return time.Date(2026, 11, 26, hour, 0, 0, 0, time.Local) }, s.lookup
			code = p.run(t.Context(), append(args, "--window", "22:00-06:00", "--no-wait"))
			return code, errs.String()
		}
		there.Faults.Forget()
		if code, stderr := at(12); code != outcome.Temporary || !strings.Contains(stderr, "22:00") {
			t.Errorf("%s at noon: exit %d, %s", args[0], code, stderr)
		}
		if _, got := there.Faults.Bytes("", ""); got != 0 {
			t.Errorf("%s at noon: %d bytes were sent", args[0], got)
		}
		if code, stderr := at(23); code != outcome.OK {
			t.Errorf("%s at night: exit %d, %s", args[0], code, stderr)
		}
	}
}

// A prune leaves the reports of devices, and a generation that one of them names, with the one before, to which the device would go back.
func TestSitePruneLeavesReports(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	for _, poll := range []string{"5", "6", "7", "8", "9"} {
		s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS="+poll, states)
		if poll == "6" {
			s.reporter("press-07").report(nil) // that it runs generation 2
		}
	}
	s.mirrored("--history", "9")
	s.do(outcome.OK, "export", "-q", "--reports", states, "stick")
	s.do(outcome.OK, "import", "-q", "--reports", "stick", siteHost+"/plant/state")
	if r := s.sitePruned("--history", "1"); r.Removed.States != 1 {
		t.Errorf("%+v of %+v, want that generation 3 is removed", r.Removed, r.Devices[0].Stays)
	}
	tags, err := opened(t, there.Reference("plant/state")).Tags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, tag := range tags {
		if strings.HasPrefix(tag, "press-07") {
			left = append(left, tag)
		}
	}
	if got := strings.Join(left, " "); got != "press-07 press-07.current press-07.v1 press-07.v2 press-07.v4 press-07.v5" {
		t.Errorf("the site has %s", got)
	}
	s.do(outcome.OK, "verify", "device", "-q", "--key", "press-07.pub", siteHost+"/plant/state:press-07")
}

// An import into a registry whose disk is full is told, and moves no device's tag; with more space the next one comes to the end and sends what
// arrived not again.
func TestImportToAFullRegistry(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	const layer = 3 << 20
	s.pushLayers("library/caddy:2.10", layer, layer, layer)
	s.stock()
	disk := t.TempDir()
	testenv.SmallDisk(t, disk, 2*layer+layer/2)
	there := s.site(testenv.Distribution, testenv.WithStorage(disk))
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	code, _, errs := s.try("import", releaseKeyPublic, "--concurrency", "1", "stick", siteHost)
	if code != outcome.Temporary || !strings.Contains(errs, siteHost) {
		t.Errorf("a full disk: exit %d, %s", code, errs)
	}
	if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code != outcome.NotFound {
		t.Errorf("the device's tag: exit %d, want that it is not there", code)
	}
	testenv.GrowDisk(t, disk, 64<<20)
	there.Faults.Forget()
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	if _, sent := there.Faults.Bytes("", ""); sent > 2*layer {
		t.Errorf("%d bytes were sent by the second import, want at most the layers that were not complete", sent)
	}
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// The garbage collection of the site's registry, which also removes manifests without a tag, leaves everything that devices need: images of
// indexes, signatures in both formats and what refers to them, and policies.
func TestSiteAfterGarbageCollection(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	dir := t.TempDir()
	there := s.site(testenv.Distribution, testenv.WithStorage(dir))
	const trust = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "policy.yaml", trust)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "root.key", "policy.yaml", trust)
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", monitor+":1.4.0")
	s.write("predicate.json", `{"result":"fine"}`)
	s.do(outcome.OK, "attest", "-q", "--key", "release.key", "--type", "https://example.com/checked/v1", "--predicate", "predicate.json", monitor+":1.4.0")
	for _, component := range []string{monitor + ":1.4.0", host + "/plant/components/sensor:1.4.0"} {
		for _, poll := range []string{"5", "6"} {
			s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", "press-07", "--key", "release.key", "--component", component, "--set", "POLL_SECONDS="+poll, states)
		}
	}
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--key", "release.key", "--component", monitor+":1.4.0", states)
	more := []string{"--history", "1", "--trust", trust}
	s.mirrored("--history", "4", "--trust", trust)
	s.sitePruned("--history", "1")
	testenv.CollectGarbage(t, dir)
	if again := s.mirrored(append(more, "--check", "all")...); again.Sent+again.Manifests+again.Tags != 0 {
		t.Errorf("the site has lost something: %+v", again.Mirrored)
	}
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
	for _, tag := range []string{"press-07", "press-07.v3", "press-08"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+tag)
	}
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--attestation", "https://example.com/checked/v1", monitor+":1.4.0")
}
