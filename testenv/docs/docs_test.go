package docs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

// TestPages types every command of README.md and docs into a shell, each page in a world of its own.
func TestPages(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs: %d pages, %v", len(pages), err)
	}
	bin := programs(t)
	for _, name := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Parse(filepath.Base(name), string(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Commands) > 0 {
			t.Run(p.Name, func(t *testing.T) {
				if !slices.Contains(p.Needs, "token") { // which sets the environment of the process
					t.Parallel()
				}
				play(t, p, bin)
			})
		}
	}
}

// programs builds ours, as a reader has them.
func programs(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if err := testenv.BuildOwn(t.Context(), bin, testenv.OwnPrograms()...); err != nil {
		t.Fatal(err)
	}
	return bin
}

// sit makes a shell for a reader.
func sit(t *testing.T, bin string) *writer {
	t.Helper()
	box := testenv.NewBox(t)
	return &writer{t: t, box: box, bin: bin, stands: map[string]string{}, env: map[string]string{
		"HOME": box.Dir(), "DOCKER_CONFIG": filepath.Join(box.Dir(), ".docker"), "LONGSHORE_KEY_PASSWORD": "reader", "COSIGN_PASSWORD": "reader",
	}}
}

// play gives a page what it needs and types its commands.
func play(t *testing.T, p *Page, bin string) {
	w := sit(t, bin)
	known := map[string]func(){
		"registry": w.registry, "images": w.images, "device": w.device, "fleet": w.fleet, "published": w.published, "cosign": w.cosign,
		"running": w.running, "token": w.token, "sigstore": w.sigstore, "git": w.git,
		"site": w.site, "curl": w.curl,
	}
	for _, need := range p.Needs {
		provide, ok := known[need]
		if !ok {
			t.Fatalf("%s needs %q, which is none of %v", p.Name, need, slices.Sorted(maps.Keys(known)))
		}
		provide()
	}
	if out, err := w.shell(p.Script(w.stands)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// writer is the shell of a reader of a page.
type writer struct {
	t      testing.TB
	box    *testenv.Box
	bin    string
	server *testenv.RegistryServer
	daemon *testenv.Daemon
	stands map[string]string // what a page says -> what is here
	env    map[string]string
	path   []string
}

func (w *writer) registry() {
	w.server = testenv.Registry(w.t, testenv.Distribution)
	w.stands["harbor.acme.example"] = w.server.Host
}

// site is the registry of a site, and what another site needs to serve media.
func (w *writer) site() {
	w.stands["registry.graz.local:5000"] = testenv.Registry(w.t, testenv.Distribution).Host
	w.stands["serve.graz.local:5001"] = freeAddress(w.t)
	ca, cert, key := testenv.ServerPair(w.t, "127.0.0.1")
	for name, file := range map[string]string{"serve-ca.crt": ca, "serve.crt": cert, "serve.key": key} {
		if err := os.Rename(file, filepath.Join(w.box.Dir(), name)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *writer) images() {
	dir := filepath.Join(w.box.Dir(), "line-monitor")
	if _, err := testenv.LineMonitor(w.t.Context(), os.Stderr, w.server, dir, 1); err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(dir, "compose.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("WEB_PORT:-8080"), []byte("WEB_PORT:-"+freeAddress(w.t))) // 8080 may be taken here
	if err := os.WriteFile(file, text, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) published() {
	script := `longshore key generate release &&
		longshore component push line-monitor harbor.acme.example/plant/components/line-monitor:1.4.0 &&
		longshore state push --device press-07 --key release.key --component harbor.acme.example/plant/components/line-monitor:1.4.0 harbor.acme.example/plant/state`
	if out, err := w.shell(strings.ReplaceAll(script, "harbor.acme.example", w.server.Host)); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

// running is a device that was set up as docs/device.md says.
func (w *writer) running() {
	if out, err := w.shell("install -m 0755 dist/linux-amd64/longshore-agent local-bin/ && longshore-agent unit >units/longshore-agent.service &&" +
		"longshore-agent init --device press-07 --state oci://" + w.server.Host + "/plant/state --key release.pub &&" +
		"systemctl enable --now longshore-agent"); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

func (w *writer) cosign() {
	for _, name := range []string{"cosign2", "cosign3"} {
		w.path = append(w.path, filepath.Dir(testenv.Program(w.t, name)))
	}
}

// git is a checkout here with what is there already in its first commit, and a server that has it.
func (w *writer) git() {
	for name, value := range map[string]string{"AUTHOR": "Reader", "COMMITTER": "Reader"} {
		w.env["GIT_"+name+"_NAME"], w.env["GIT_"+name+"_EMAIL"] = value, "reader@acme.example"
	}
	w.env["GIT_CONFIG_GLOBAL"] = os.DevNull
	checkout := filepath.Join(w.box.Dir(), "plants")
	if out, err := w.shell("git init --quiet --initial-branch main plants && mv line-monitor plants/"); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	server := testenv.ServeGit(w.t, checkout, "ci", "robot") // whose address has user and password
	w.stands["https://git.acme.example/plants.git"] = server.URL
}

// token is a PKCS#11 token with a key in it.
func (w *writer) token() {
	k := testenv.SoftHSM(w.t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	k.Import(w.t, "release", 1, key)
	bin := w.t.TempDir()
	if err := testenv.BuildOwnWithC(w.t.Context(), bin, "longshore"); err != nil {
		w.t.Fatal(err)
	}
	w.path = append(w.path, bin)
	w.env["COSIGN_PKCS11_PIN"] = k.PIN
}

// sigstore is an instance with its two documents, and a token for one person.
func (w *writer) sigstore() {
	s := testenv.StartSigstore(w.t)
	token, err := s.Token("release@acme.example")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.box.Dir(), "token.jwt"), []byte(token), 0o600); err != nil {
		w.t.Fatal(err)
	}
	for name, from := range map[string]string{"signing_config.json": s.SigningConfig, "trusted_root.json": s.TrustedRoot} {
		data, err := os.ReadFile(from)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.box.Dir(), name), data, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	w.stands["https://login.acme.example"] = s.Issuer
}

func (w *writer) fleet() {
	w.curl()
	w.stands["127.0.0.1:8440"], w.stands["127.0.0.1:8443"] = freeAddress(w.t), freeAddress(w.t)
}

func (w *writer) curl() {
	if err := testenv.InstallDebian(w.t.Context(), os.Stderr, "curl"); err != nil {
		testenv.Unavailable(w.t, "curl: %v", err)
	}
}

var devices atomic.Int32 // numbers the tables and address pools of this process's devices

// device is a containerd, folders in the place of those in /etc, and a systemctl that does to the agent what the unit says: this machine may
// have no systemd. It only has containerd read its configuration.
func (w *writer) device() {
	d := testenv.Containerd(w.t)
	w.daemon = d
	etc := filepath.Join(w.box.Dir(), "etc")
	n := devices.Add(1)
	table := fmt.Sprintf("lsdocs%d_%d", os.Getpid(), n)
	if err := w.box.OwnTable(w.t.Context(), os.Stderr, table); err != nil {
		w.t.Fatal(err)
	}
	bin, units, dist, daemon := filepath.Join(w.box.Dir(), "local-bin"), filepath.Join(w.box.Dir(), "units"), filepath.Join(w.box.Dir(), "dist"), filepath.Join(w.box.Dir(), "etc-containerd")
	for _, dir := range []string{bin, units, dist, daemon} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := os.Symlink(w.bin, filepath.Join(dist, "linux-amd64")); err != nil {
		w.t.Fatal(err)
	}
	w.path = append(w.path, bin)
	maps.Copy(w.stands, map[string]string{"/run/longshore/agent.sock": filepath.Join(w.box.Dir(), "run", "agent.sock"), "/etc/longshore": etc, "/usr/local/bin": bin, "/etc/systemd/system": units, "/etc/containerd": daemon})
	maps.Copy(w.env, map[string]string{
		"LONGSHORE_CONFIG_DIR": etc, "LONGSHORE_CONFIG": filepath.Join(etc, "agent.yaml"), "LONGSHORE_POLL": "1s",
		"CONTAINERD": filepath.Join(d.Bin, "containerd"), "LONGSHORE_CONTAINERD": d.Address, "LONGSHORE_CONTAINERD_NAMESPACE": d.Namespace,
		"LONGSHORE_NETWORK_TABLE": table, "LONGSHORE_NETWORK_POOL": fmt.Sprintf("10.%d.0.0/16", 240+n%10),
		"LONGSHORE_DATA_DIR": filepath.Join(w.box.Dir(), "data"), "LONGSHORE_RUN_DIR": filepath.Join(w.box.Dir(), "run"),
	})
	systemctl := `#!/bin/bash
case "$*" in
"enable --now longshore-agent")
	[ -s units/longshore-agent.service ] || { echo "no unit is installed" >&2; exit 1; }
	longshore-agent run >agent.log 2>&1 &
	echo $! >agent.pid
	for i in $(seq 1200); do [ -S "$LONGSHORE_RUN_DIR/agent.sock" ] && exit 0; sleep 0.05; done
	cat agent.log >&2; exit 1;;
"stop longshore-agent")
	kill "$(cat agent.pid)"
	while kill -0 "$(cat agent.pid)" 2>/dev/null; do sleep 0.05; done;;
daemon-reload)
	[ -s units/containerd.service.d/memory.conf ] || { echo "nothing has changed" >&2; exit 1; };;
"restart containerd")
	"$CONTAINERD" --config etc-containerd/config.toml config dump >containerd.toml;;
*) echo "systemctl $*: not on this page" >&2; exit 1;;
esac
`
	dir := filepath.Join(w.box.Dir(), "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(systemctl), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.path = append(w.path, dir)
}

// shell runs a script in the reader's folder. What it leaves running ends with the box.
func (w *writer) shell(script string) (string, error) {
	out, err := os.CreateTemp(w.box.Dir(), "shell-*.log") // a file, not a pipe: what runs in the background may keep it
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := exec.CommandContext(w.t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.box.Dir(), out, out
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(slices.Clone(w.path), w.bin, os.Getenv("PATH")), ":"))
	for k, v := range w.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	w.box.Mark(cmd)
	err = cmd.Run()
	text, readErr := os.ReadFile(out.Name())
	if readErr != nil {
		return "", readErr
	}
	return string(text), err
}

func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// TestTroubleshootHasEveryCode holds docs/troubleshoot.md to the codes that the agent can tell; UPDATE_GOLDEN=1 writes
// its table.
func TestTroubleshootHasEveryCode(t *testing.T) {
	const begin, end = "<!-- codes -->\n", "<!-- end of codes -->\n"
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs", "troubleshoot.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	var b strings.Builder
	b.WriteString("| code | check | what happened | what to do |\n|---|---|---|---|\n")
	for _, c := range codes.All() {
		check := "–"
		if c.Check > 0 {
			check = fmt.Sprint(c.Check)
		}
		retried := ""
		if c.Retried {
			retried = " (retried automatically)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s%s | %s |\n", c.Code, check, c.Meaning, retried, c.Action)
	}
	want := before + begin + b.String() + end + after
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what agent.Codes says; run with UPDATE_GOLDEN=1", file)
	}
}

// TestRequestsAreDocumented holds docs/approve.md to the requests that the agent's sockets answer: each is in a table, and typed with curl,
// but for the one that is not followed by HTTP.
func TestRequestsAreDocumented(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "approve.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse("approve.md", string(text))
	if err != nil {
		t.Fatal(err)
	}
	route, n := regexp.MustCompile(`"(GET|POST|DELETE|PUT|PATCH) (/v1/[a-z0-9/-]+)"`), 0
	for _, name := range []string{"control.go", "operator.go", "query.go"} {
		source, err := os.ReadFile(filepath.Join(root, "agent", "control", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range route.FindAllStringSubmatch(string(source), -1) {
			n++
			method, path := m[1], m[2]
			if !strings.Contains(string(text), "`"+method+" "+path) {
				t.Errorf("%s %s is in no table", method, path)
			}
			typed := slices.ContainsFunc(p.Commands, func(c Command) bool {
				return strings.Contains(c.Text, "http://agent"+path) && (method != http.MethodDelete || strings.Contains(c.Text, "-X DELETE"))
			})
			if !typed && path != "/v1/exec" {
				t.Errorf("%s %s is not typed", method, path)
			}
		}
	}
	if n < 15 {
		t.Errorf("found %d requests in the source", n)
	}
}

// TestLinks finds links of pages to files that are not there.
func TestLinks(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	links := 0
	for _, name := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", filepath.Base(name), m[1])
			}
		}
	}
	if links < 10 {
		t.Errorf("found %d links, want at least the README's table", links)
	}
}
