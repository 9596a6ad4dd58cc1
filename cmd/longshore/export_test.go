package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/testenv"
)

// blobs lists the digests and sizes of the files in a layout.
func blobs(t *testing.T, dir string) map[digest.Digest]int64 {
	t.Helper()
	out := map[digest.Digest]int64{}
	err := filepath.WalkDir(filepath.Join(dir, "blobs", "sha256"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			out[digest.NewDigestFromEncoded(digest.SHA256, e.Name())] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A release is carried to a site on a stick, whole, and then as a difference to what the site has; the site verifies both.
func TestExport(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.stock()
			s.site(testenv.Distribution)
			push := func(component, poll string) {
				s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--signature-format", "bundle", "--component", component, "--set", "POLL_SECONDS="+poll, states)
			}
			push(monitor+":1.4.0", "5")
			s.do(outcome.OK, "sign", "--key", "release.key", "--signature-format", "legacy", monitor+":1.4.0")
			s.do(outcome.OK, "export", releaseKeyPublic, states, "whole")
			s.do(outcome.OK, "import", releaseKeyPublic, "whole", siteHost)
			s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
			s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/components/line-monitor:1.4.0")
			if out := s.do(outcome.OK, "import", "-o", "json", releaseKeyPublic, "whole", siteHost); !strings.Contains(out, `"sent": 0`) || !strings.Contains(out, `"tags": 0`) {
				t.Errorf("a second import sends something:\n%s", out)
			}
			s.write("graz.json", s.do(outcome.OK, "site", "inventory", states, siteHost))
			var has site.Inventory
			if err := json.Unmarshal(mustRead(t, "graz.json"), &has); err != nil || len(has.Content) == 0 {
				t.Fatalf("inventory: %v, %d entries", err, len(has.Content))
			}
			push(monitor+":1.4.0", "6")
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--key", "release.key", "--component", host+"/plant/components/sensor:1.4.0", states)
			s.do(outcome.OK, "export", releaseKeyPublic, "--since", "graz.json", states, "stick")
			for d, size := range blobs(t, "stick") {
				data := mustRead(t, filepath.Join("stick", "blobs", "sha256", d.Encoded()))
				if slices.Contains(has.Content[host+"/library/caddy"], d) && !json.Valid(data) { // manifests are carried
					t.Errorf("%s, %d bytes, is carried although the site has it", d, size)
				}
			}
			s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
			for _, tag := range []string{"press-07", "press-08"} {
				s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:"+tag)
			}
			if out := s.do(outcome.OK, "site", "plan", states, siteHost); !strings.Contains(out, " 0 B to copy") {
				t.Errorf("the site lacks something:\n%s", out)
			}
			// What is older than the site is refused.
			s.refuses(outcome.Refused, []string{"press-07 is generation 2, and generation 1"}, "import", releaseKeyPublic, "whole", siteHost)
		})
	}
}

// A stick that was pulled out, edited or is for another site is named, and no device's tag moves.
func TestImportRefuses(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", releaseKeyPublic, states, "stick")
	s.write("other.json", `{"version": 1, "states": "harbor.acme.example/wien/state", "content": {}}`)
	s.refuses(outcome.Refused, []string{"is the inventory for harbor.acme.example/wien/state"}, "export", releaseKeyPublic, "--since", "other.json", states, "next")
	s.write("torn.json", `{"version": 1,`)
	s.refuses(outcome.Misused, []string{"torn.json"}, "export", releaseKeyPublic, "--since", "torn.json", states, "next")
	s.refuses(outcome.Misused, []string{"is less than 1MiB"}, "export", releaseKeyPublic, "--since", "torn.json", "--volume-size", "4kB", states, "next")
	if n := len(s.server.Faults.Requests("", "")); n > 0 {
		t.Errorf("a wrong size of volumes is told after %d requests", n)
	}
	s.refuses(outcome.NotFound, []string{"missing.json"}, "export", releaseKeyPublic, "--since", "missing.json", states, "next")
	if n := len(s.server.Faults.Requests("", "")); n > 0 {
		t.Errorf("a missing inventory is told after %d requests", n)
	}
	s.refuses(outcome.Verification, []string{"press-07"}, "import", "--key=other.pub", "stick", siteHost)
	s.refuses(outcome.NotFound, []string{"it is no export, or one that was not finished"}, "import", releaseKeyPublic, "line-monitor", siteHost)
	s.write("source.json", s.do(outcome.OK, "site", "inventory", states, host))
	s.do(outcome.OK, "export", releaseKeyPublic, "--since", "source.json", states, "difference")
	for code, how := range map[int]string{outcome.Verification: releaseKeyPublic, outcome.NotFound: "--no-verify"} { // the signatures are not there either
		s.refuses(code, []string{"hint: the export leaves out the content that the inventory of an unnamed site, "}, "import", how, "difference", siteHost)
	}
	// A layer that is not what its name says, and one that is gone.
	var layer string
	for d, size := range blobs(t, "stick") {
		if file := filepath.Join("stick", "blobs", "sha256", d.Encoded()); size > 500 && !json.Valid(mustRead(t, file)) {
			layer = file
		}
	}
	data := mustRead(t, layer)
	for _, damage := range []func(){
		func() { s.write(layer, string(append([]byte("x"), data[1:]...))) },
		func() { s.write(layer, string(data[:len(data)/2])) },
		func() {
			if err := os.Remove(layer); err != nil {
				t.Fatal(err)
			}
		},
	} {
		damage()
		if code, _, stderr := s.try("import", releaseKeyPublic, "stick", siteHost); code == outcome.OK || !strings.Contains(stderr, "sha256:") {
			t.Errorf("a damaged stick: exit %d, %s", code, stderr)
		}
		if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code != outcome.NotFound {
			t.Errorf("the device's tag is there: exit %d", code)
		}
	}
	s.write(layer, string(data))
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
}

// Trust policies travel too, and one that its signers have not signed is carried neither away nor in: its tag would stand in the way
// of the real version.
func TestCarriedTrust(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	const at = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "policy.yaml", at)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "root.key", "policy.yaml", at)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", releaseKeyPublic, "--trust", at, states, "stick")
	// Before the import, an unsigned version is added.
	s.rewrite("policy.yaml", "version: 1", "version: 2")
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 2, Policy: mustRead(t, "policy.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	stick, err := client.OpenCarried("stick", at, registry.Carried{})
	if err == nil {
		_, err = release.Publish(t.Context(), stick, a, release.PublishOptions{Tags: []string{"v2"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	s.write("site.yaml", s.do(outcome.OK, "trust", "show", "--document", at+":v1"))
	for _, who := range []string{releaseKeyPublic, "--policy=site.yaml"} {
		s.refuses(outcome.Verification, []string{at}, "import", who, "stick", siteHost)
	}
	s.do(outcome.NotFound, "trust", "show", siteHost+"/plant/trust")
	s.do(outcome.OK, "export", releaseKeyPublic, "--trust", at, states, "again")
	for _, who := range []string{releaseKeyPublic, "--policy=site.yaml"} {
		s.do(outcome.OK, "import", who, "again", siteHost)
	}
	s.do(outcome.OK, "trust", "show", siteHost+"/plant/trust:v1")

	// A version 2 of somebody else, without the version that it should follow: with keys alone, the site's version 1 decides.
	if err := opened(t, s.server.Reference("plant/trust")).RemoveManifest(t.Context(), digest.Digest(strings.TrimSpace(s.do(outcome.OK, "trust", "show", "-q", at+":v1"))), "v1"); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "trust", "init", "--signer", "release.pub", "--key", "release.pub", "--file", "false.yaml", at)
	s.rewrite("false.yaml", "version: 1", "version: 2")
	s.do(outcome.OK, "trust", "push", "-q", "--key", "release.key", "false.yaml", at)
	s.do(outcome.OK, "export", releaseKeyPublic, "--trust", at, states, "false")
	s.refuses(outcome.Verification, []string{at}, "import", releaseKeyPublic, "false", siteHost)
	s.refuses(outcome.Verification, []string{at}, "mirror", releaseKeyPublic, "--trust", at, states, siteHost)
	s.do(outcome.NotFound, "trust", "show", siteHost+"/plant/trust:v2")
}

// An inventory that another site has made, or that nobody of the site has signed as it is, is named, and nothing is written.
func TestSignedInventory(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "mirror", "-q", releaseKeyPublic, states, siteHost)
	take := func(args ...string) {
		t.Helper()
		s.do(outcome.OK, append(append([]string{"site", "inventory", "--site", "graz", "--file", "graz.json"}, args...), states, siteHost)...)
	}
	take()
	since := []string{"export", "-o", "json", releaseKeyPublic, "--since", "graz.json", "--site", "graz", "--inventory-key", "root.pub", states, "stick"}
	s.refuses(outcome.Verification, []string{"graz.json", "hint: fetch it again from the site with graz.json.sigstore.json"}, since...)
	take("--key", "release.key")
	s.refuses(outcome.Verification, []string{"graz.json"}, since...)
	take("--key", "root.key") // the signature of the other key goes
	if left, err := filepath.Glob("graz.json*"); err != nil || len(left) != 2 {
		t.Errorf("%v, %v, want the inventory and one signature", left, err)
	}
	whole := string(mustRead(t, "graz.json"))
	s.write("graz.json", strings.Replace(whole, `"site": "graz"`, `"site": "Graz"`, 1))
	s.refuses(outcome.Verification, []string{"graz.json"}, since...)
	s.write("graz.json", whole)
	s.refuses(outcome.Refused, []string{"graz.json is the inventory of graz, not of wien"}, "export", releaseKeyPublic, "--since", "graz.json", "--site", "wien", states, "stick")
	s.refuses(outcome.Misused, []string{"need --since"}, "export", releaseKeyPublic, "--site", "graz", states, "stick")
	s.refuses(outcome.Misused, []string{"--key needs --file"}, "site", "inventory", "--key", "root.key", states, siteHost)
	if _, err := os.Stat("stick"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
	var made exportResult
	if err := json.Unmarshal([]byte(s.do(outcome.OK, since...)), &made); err != nil || made.Site != "graz" || made.Taken == "" || made.Sent > 1 || made.Omitted == 0 {
		t.Errorf("%v: %+v, want that all blobs but the signature's were omitted", err, made)
	}
	// The site has lost what its inventory lists, signatures too.
	s.write("certs.d/"+siteHost+"/hosts.toml", "server = \""+testenv.Registry(t, testenv.Distribution).URL+"\"\n")
	s.refuses(outcome.Verification, []string{"hint: the export leaves out the content that the inventory of graz, " + made.Taken + ", lists"}, "import", releaseKeyPublic, "stick", siteHost)
}

// A site whose tag of a device was not set before an import ended: a difference to its inventory carries the state again, and the next
// import sets the tag.
func TestInventoryOfAnImportThatWasCutOff(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	push := func(device string) {
		t.Helper()
		s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", device, "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS=30", states)
	}
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	push("press-08")
	s.mirrored()
	first := s.digestAt(siteHost + "/plant/state:press-07")
	push("press-07")
	s.mirrored()
	second := s.digestAt(siteHost + "/plant/state:press-07")
	if err := opened(t, there.Host+"/plant/state").CompareAndMoveTag(t.Context(), "press-07", second, first); err != nil { // as before the last step of an import
		t.Fatal(err)
	}
	s.do(outcome.OK, "site", "inventory", "--file", "graz.json", states, siteHost)
	push("press-09") // something else to carry
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, "--since", "graz.json", states, "stick")
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
	if now := s.digestAt(siteHost + "/plant/state:press-07"); now != second {
		t.Errorf("press-07 names %s at the site, want %s, as at the centre", now, second)
	}
}

func (s *shell) digestAt(reference string) digest.Digest {
	s.t.Helper()
	return digest.Digest(strings.TrimSpace(s.do(outcome.OK, "state", "show", "-q", reference)))
}

// A receipt says what the site has, signed by the site; media that cannot be written are no reason to stop.
func TestReceipt(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	for _, id := range []string{"press-07", "press-08"} {
		s.do(outcome.OK, "state", "push", "-q", "-d", id, "--key", "release.key", "--component", monitor+":1.4.0", states)
	}
	s.do(outcome.OK, "export", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "export", releaseKeyPublic, "--tar", states, "tar")
	read := func(file string) (r site.Receipt) {
		t.Helper()
		if err := json.Unmarshal(mustRead(t, file), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "--site-key", "root.key", "stick", siteHost)
	s.do(outcome.OK, "verify", "--key", "root.pub", "stick/receipt.json")
	r := read("stick/receipt.json")
	document := mustRead(t, filepath.Join("stick", site.ExportFile))
	if r.Export != digest.FromBytes(document) || r.States != states || r.Destination != siteHost || len(r.Devices) != 2 || r.Bytes == 0 || r.Time == "" {
		t.Errorf("receipt: %+v", r)
	}
	for i, id := range []string{"press-07", "press-08"} {
		at := s.do(outcome.OK, "state", "show", "-q", siteHost+"/plant/state:"+id)
		if d := r.Devices[i]; d.Tag != id || d.Generation != 1 || d.Digest.String() != strings.TrimSpace(at) || !d.Moved {
			t.Errorf("%s: %+v, want %s", id, d, at)
		}
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "--receipt", "mine.json", "tar", siteHost)
	if again := read("mine.json"); len(again.Devices) != 2 || again.Devices[0].Moved || again.Bytes != 0 {
		t.Errorf("the second receipt: %+v", again)
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "tar", siteHost)
	read("tar/receipt.json")
	// The signature of what the receipt was before goes with it.
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	s.refuses(outcome.Verification, []string{"receipt.json"}, "verify", "--key", "root.pub", "stick/receipt.json")
	if err := unix.Mount("stick", "stick", "", unix.MS_BIND, ""); err != nil {
		testenv.Unavailable(t, "mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("stick", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", "stick", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if out := s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost); !strings.Contains(out, "no receipt was written") {
		t.Errorf("nothing is said of the receipt:\n%s", out)
	}
	if code, _, _ := s.try("import", releaseKeyPublic, "--receipt", "stick/mine.json", "stick", siteHost); code == outcome.OK {
		t.Error("a receipt that was asked for was not written, and nothing was said")
	}
}

// large is the image of the line monitor's server with so many bytes that no tool makes fewer.
func (s *shell) large(bytes int) {
	s.t.Helper()
	data := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data) // it does not fail
	image, err := testenv.BuildImage("linux/amd64", v1.Config{}, []testenv.File{{Path: "app", Data: data}})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.server.Push(s.t.Context(), "library/caddy:2.10", image); err != nil {
		s.t.Fatal(err)
	}
}

// Volumes are imported from one folder or several, and served; what is wrong with them is told before anything is pushed.
func TestExportInVolumes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(5 << 20)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	var made exportResult
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "export", "-o", "json", releaseKeyPublic, "--volume-size", "2MiB", states, "stick")), &made); err != nil {
		t.Fatal(err)
	}
	if len(made.Volumes) < 3 {
		t.Fatalf("volumes: %v", made.Volumes)
	}
	if left, err := filepath.Glob("stick/*.part"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	last := made.Volumes[len(made.Volumes)-1]
	move := func(from, to string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(from, to)); err != nil {
			t.Fatal(err)
		}
	}
	second := filepath.Join("second", filepath.Base(last))
	move(last, second)
	nothing := func(code int, words []string, args ...string) {
		t.Helper()
		there.Faults.Forget()
		s.refuses(code, words, args...)
		if asked := there.Faults.Requests("", ""); len(asked) > 0 {
			t.Errorf("%v: the site was asked %d times", args, len(asked))
		}
	}
	nothing(outcome.NotFound, []string{"1 of", "volumes are missing: " + filepath.Base(last)}, "import", releaseKeyPublic, "stick", siteHost)
	nothing(outcome.NotFound, []string{"volumes are missing: " + filepath.Base(last)}, "serve", "--listen", "127.0.0.1:0", "stick")
	nothing(outcome.Refused, []string{"are both volume"}, "import", releaseKeyPublic, "stick", second, second, siteHost)
	data := mustRead(t, second)
	s.write(second, string(data[:len(data)-2000]))
	nothing(outcome.Verification, []string{second, "digest mismatch"}, "import", releaseKeyPublic, "stick", "second", siteHost)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, "--history", "1", "--tar", states, "single")
	s.write(second, string(data))
	nothing(outcome.Refused, []string{"volumes of different exports"}, "import", releaseKeyPublic, "stick", "second", "single", siteHost)
	nothing(outcome.Misused, []string{"is less than 1MiB"}, "export", releaseKeyPublic, "--volume-size", "4kB", states, "next")
	s.write("file", "")
	nothing(outcome.Misused, []string{"file is a file", "hint: name a folder"}, "export", releaseKeyPublic, states, "file")
	server := s.serve("stick", "second")
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+server.url+"\"\n")
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
	for d, size := range s.layers(server.url) {
		if got := get(t, server.url+"/v2/library/caddy/blobs/"+d.String(), 200); int64(len(got)) != size || digest.FromBytes(got) != d {
			t.Errorf("%s: %d bytes of %d", d, len(got), size)
		}
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "second", "stick", siteHost)
	s.do(outcome.OK, "import", releaseKeyPublic, "single/longshore-export-001.tar", siteHost)
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
}

// layers are those of the one image of the line monitor's server.
func (s *shell) layers(url string) map[digest.Digest]int64 {
	s.t.Helper()
	var tags struct{ Tags []string }
	var m struct {
		Layers []struct {
			Digest digest.Digest
			Size   int64
		}
	}
	err := json.Unmarshal(get(s.t, url+"/v2/library/caddy/tags/list", 200), &tags)
	if err == nil {
		err = json.Unmarshal(get(s.t, url+"/v2/library/caddy/manifests/"+tags.Tags[0], 200), &m)
	}
	if err != nil || len(m.Layers) == 0 {
		s.t.Fatalf("%v, %d layers", err, len(m.Layers))
	}
	out := map[digest.Digest]int64{}
	for _, l := range m.Layers {
		out[l.Digest] = l.Size
	}
	return out
}

// An export that lacks a component says which one and what to do, and no tag moves.
func TestImportWithoutAComponent(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	d := digest.Digest(strings.TrimSpace(s.do(outcome.OK, "inspect", "-q", monitor+":1.4.0")))
	if err := os.Remove(filepath.Join("stick", "blobs", "sha256", d.Encoded())); err != nil {
		t.Fatal(err)
	}
	for _, verified := range []string{releaseKeyPublic, "--no-verify"} {
		s.refuses(outcome.NotFound, []string{d.String(), "hint: the export lacks it: export again, from a registry that has it"}, "import", verified, "stick", siteHost)
	}
	s.do(outcome.NotFound, "state", "show", "-d", "press-07", siteHost+"/plant/state")
}

// A device without a state at the site does not empty the inventory of the others.
func TestInventoryOfANewDevice(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	const policy = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "policy.yaml", policy)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "root.key", "policy.yaml", policy)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.mirrored()
	want := s.do(outcome.OK, "site", "inventory", "-q", "-d", "press-07", states, siteHost)
	for _, more := range [][]string{{"-d", "press-08"}, {"--trust", policy}} {
		if got := s.do(outcome.OK, append(append([]string{"site", "inventory", "-q", "-d", "press-07"}, more...), states, siteHost)...); got != want {
			t.Errorf("with %q the inventory has content of %s repositories, want %s", more, strings.TrimSpace(got), want)
		}
	}
	out, stderr := "", ""
	if _, out, stderr = s.try("site", "inventory", "-d", "press-09", states, siteHost); !strings.Contains(stderr, "the inventory is empty") || !strings.Contains(out, `"content": {}`) {
		t.Errorf("an inventory of nothing: %s%s", out, stderr)
	}
}
