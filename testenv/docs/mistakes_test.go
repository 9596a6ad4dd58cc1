package docs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/testenv"
)

// mistake is something that people do wrong, or that goes wrong around them.
type mistake struct {
	name, script string
	exit         int // of the script's last command
	// problem is the cause and the advice in an answer with a form of its own, such as a status.
	problem []string
	before  func(w *writer) // what goes wrong around them; nil: nothing
}

// mistakes are the most frequent ones. FULL is a directory on a full disk, CLOSED an address where nothing listens.
func mistakes() []mistake {
	const component = "oci://harbor.acme.example/plant/components/line-monitor:1.4.0"
	push := "longshore state push --device press-07 --key release.key --component " + component + " harbor.acme.example/plant/state"
	noRuntime := []string{"containerd does not answer", "systemctl status containerd"}
	return []mistake{
		{name: "not root", script: "asNobody longshore-agent run --config agent.yaml", exit: 3},
		{name: "not root, asking the agent", script: "asNobody longshore-agent status --config agent.yaml", exit: 3},
		{name: "no agent runs", script: "longshore-agent status --config other.yaml", exit: 4},
		{name: "started twice", script: "longshore-agent run --config agent.yaml", exit: 6},
		{name: "no containerd", script: "longshore-agent status --config agent.yaml", problem: noRuntime},
		{name: "no containerd, and waiting for the result", script: "longshore-agent sync --config agent.yaml --timeout 5s", exit: 1, problem: []string{"containerd does not answer", "containerd's log"}},
		{name: "wrong password of a key", script: "LONGSHORE_KEY_PASSWORD=wrong " + push, exit: 3},
		{name: "wrong password of a registry", script: "echo wrong | longshore login --username ci --password-stdin LOCKED", exit: 3},
		{name: "wrong password of a registry, without logging in", script: "longshore state show -u ci -p wrong --device press-07 LOCKED/plant/state", exit: 3},
		{name: "not logged in", script: "longshore state show --device press-07 LOCKED/plant/state", exit: 3},
		{name: "wrong key", script: "longshore verify -q --key other.pub harbor.acme.example/plant/state:press-07", exit: 5},
		{name: "signed with a wrong key before", script: strings.Replace(push, "release.key", "other.key", 1), exit: 5},
		{name: "public key to sign with", script: strings.Replace(push, "release.key", "release.pub", 1), exit: 2},
		{name: "private key to verify with", script: "longshore verify --key release.key harbor.acme.example/plant/state:press-07", exit: 2},
		{name: "private key on a device", script: "longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.key --config-dir init", exit: 2},
		{name: "typing error in a flag", script: strings.Replace(push, "--device", "--devcie", 1), exit: 2},
		{name: "typing error in a flag of the agent", script: "longshore-agent sync --tiemout 5s", exit: 2},
		{name: "typing error in a flag of the endpoint", script: "longshore-fleet serve --lisen :8440", exit: 2},
		{name: "typing error in a command", script: "longshore-fleet tokn create", exit: 2},
		{name: "typing errors in agent.yaml", script: "longshore-agent check-config --config typing.yaml", exit: 2},
		{name: "YAML that is none", script: "longshore-agent check-config --config torn.yaml", exit: 2},
		{name: "typing error in compose.yaml", script: "longshore component push typing harbor.acme.example/plant/components/typing:1.0.0", exit: 2},
		{name: "typing error in a parameter", script: push + " --set POLL_SECOND=5", exit: 2},
		{name: "registry down", script: "longshore state show --device press-07 CLOSED/plant/state", exit: 75},
		{name: "host name that is not known", script: "longshore state show --device press-07 harbor.invalid/plant/state", exit: 75},
		{name: "registry that does not answer", script: "longshore state show --timeout 1s --device press-07 SILENT/plant/state", exit: 75},
		{name: "endpoint down", script: "longshore fleet status --endpoint http://CLOSED plant >/dev/null", exit: 75},
		{name: "disk full", script: "longshore key generate FULL/more", exit: 70},
		{name: "disk full, of the endpoint", script: "longshore-fleet token create --device press-07 --database FULL/fleet.db", exit: 70},
		{name: "disk full, of a device", script: "longshore-agent run --config full.yaml", exit: 70},
		{name: "port taken", script: "longshore-fleet serve --database fleet.db --listen harbor.acme.example", exit: 70},
		{name: "clock wrong, or a certificate that has expired", script: "longshore state show --ca-file expired.pem --device press-07 EXPIRED/plant/state", exit: 3},
	}
}

// TestMistakes holds what the programs say to testdata/mistakes.golden: one sentence that tells the cause, one that tells what to
// do, and the exit code of docs/exit-codes.md.
func TestMistakes(t *testing.T) {
	t.Parallel()
	w := sit(t, programs(t))
	w.registry()
	w.images()
	w.published()
	w.mistaken()
	prelude := `asNobody() { setpriv --reuid 65534 --regid 65534 --clear-groups env PATH="$PWD/bin:$PATH" "$@"; }` + "\n"
	w.make("mistakes.golden", prelude, mistakes())
}

// make makes mistakes, and holds what is said to a golden file.
func (w *writer) make(golden, prelude string, all []mistake) {
	t := w.t
	t.Helper()
	var b strings.Builder
	for _, m := range all {
		script := m.script
		for from, to := range w.stands {
			script = strings.ReplaceAll(script, from, to)
		}
		if m.before != nil {
			m.before(w)
		}
		out, err := w.shell(prelude + script + "\necho exit $?")
		out = w.reader(out)
		said, exit, _ := strings.Cut(strings.TrimSuffix(out, "\n"), "exit ")
		if err != nil || exit != fmt.Sprint(m.exit) {
			t.Errorf("%s: exit %s, want %d; %v\n%s", m.name, exit, m.exit, err, said)
		}
		lines, hints := 0, strings.Count(said, "\n  hint: ")
		for _, l := range strings.Split(strings.TrimSpace(said), "\n") {
			if !strings.HasPrefix(l, "  hint: ") {
				lines++
			}
		}
		advised := hints > 0 || strings.Contains(said, "did you mean")
		if m.problem == nil && (lines != 1 && !strings.Contains(said, ".yaml:") || !advised || strings.Contains(said, "goroutine ") || strings.Contains(said, "level=")) {
			t.Errorf("%s: not one sentence of cause and one of advice:\n%s", m.name, said)
		}
		for _, want := range m.problem {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q is not in\n%s", m.name, want, said)
			}
		}
		fmt.Fprintf(&b, "# %s\n$ %s\n%s--- exit %s\n\n", m.name, w.reader(script), said, exit)
	}
	file := filepath.Join("testdata", golden)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// deviceMistakes are those that show on a device while it runs. TAKEN is an address that another program listens on, EXPIRED a registry whose
// certificate a clock in 2024 takes for valid.
func deviceMistakes() []mistake {
	const push = "longshore state push -q --device press-07 --key release.key --component harbor.acme.example/plant/components/line-monitor:1.4.0 --set WEB_PORT=TAKEN harbor.acme.example/plant/state"
	return []mistake{
		{name: "a volume that is in use is removed", script: "longshore-agent volumes remove line-monitor/readings", exit: 6},
		{name: "a port that another program has", script: "longshore-agent sync --timeout 60s", exit: 1, problem: []string{"port TAKEN/tcp is in use by program longshore-fleet", "publish another port"}, before: func(w *writer) {
			w.do("longshore-fleet serve --database taken.db --listen TAKEN >taken.log 2>&1 & for i in $(seq 1200); do curl -s http://TAKEN >&2 && break; sleep 0.05; done; " + push)
		}},
		{name: "a port that another program has, afterwards", script: "longshore-agent status", problem: []string{"port TAKEN/tcp is in use by program longshore-fleet", "publish another port"}},
		{name: "an application is removed, and its volume stays", script: "longshore-agent status", problem: []string{"volumes of removed applications on the disk: 1 (longshore-agent volumes list)"}, before: func(w *writer) {
			w.do("longshore state remove -q --device press-07 --key release.key harbor.acme.example/plant/state line-monitor && longshore-agent sync --timeout 60s >sync.log")
		}},
		{name: "which volumes stay", script: "longshore-agent volumes list", problem: []string{"kept"}},
		{name: "they are removed", script: "longshore-agent volumes remove line-monitor/readings", problem: []string{"removed   line-monitor"}},
		{name: "and are gone", script: "longshore-agent volumes remove line-monitor/readings", exit: 4},
		{name: "clock behind that of the registry", script: "longshore-agent sync --timeout 60s >sync.log; longshore-agent status", problem: []string{"clock-wrong", "set the clock"}, before: func(w *writer) {
			w.server.Faults.Add(testenv.Rule{Effect: func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				rw.Header().Set("Date", time.Now().Add(3*time.Hour).UTC().Format(http.TimeFormat))
				next.ServeHTTP(rw, r)
			}})
		}},
		{name: "clock wrong, or a certificate that has expired", script: "longshore-agent sync --config late/agent.yaml --timeout 60s", exit: 75, problem: []string{"its certificate has expired or is not yet valid", "clock"}, before: func(w *writer) {
			w.do(`systemctl stop longshore-agent; longshore-agent init --device press-07 --state oci://EXPIRED/plant/state --key release.pub --ca-file expired.pem \
				--config-dir late --data-dir late/data --run-dir late/run && { longshore-agent run --config late/agent.yaml >late.log 2>&1 & } &&
				for i in $(seq 1200); do [ -S late/run/agent.sock ] && break; sleep 0.05; done`)
		}},
		{name: "clock wrong, or a certificate that has expired, afterwards", script: "longshore-agent status --config late/agent.yaml", problem: []string{"its certificate has expired or is not yet valid", "clock"}},
	}
}

// TestMistakesOnDevice holds what a real device says to testdata/mistakes-device.golden, also of volumes that applications leave.
func TestMistakesOnDevice(t *testing.T) {
	w := sit(t, programs(t))
	w.registry()
	w.images()
	w.device()
	w.published()
	w.running()
	w.curl()
	w.do("longshore-agent sync --timeout 2m")
	w.stands["TAKEN"], w.stands["EXPIRED"] = freeAddress(t), w.expired()
	w.make("mistakes-device.golden", "", deviceMistakes())
}

// do types what must work.
func (w *writer) do(script string) {
	w.t.Helper()
	for from, to := range w.stands {
		script = strings.ReplaceAll(script, from, to)
	}
	if out, err := w.shell(script); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
}

var changes = regexp.MustCompile(`next check in \d+ (?:s|min|h) · |[0-9a-f]{64}|[0-9a-f]{12}…|\b\d+ (?:s|min|h)\b|next try (?:in \d+s|now)|longshore-agent (?:v\d\S+|devel)|process \d+|web ✓ starting|[0-9.]+ [KM]iB *|SIZE +|\d{4}-\d\d-\d\dT[0-9:]{8}Z`)

// reader is a text as everyone gets it, wherever and whenever.
func (w *writer) reader(text string) string {
	for name, here := range w.stands {
		text = strings.ReplaceAll(text, here, name)
	}
	text = strings.ReplaceAll(text, w.box.Dir()+"/", "")
	text = strings.ReplaceAll(text, w.box.Dir(), "/home/reader")
	return changes.ReplaceAllStringFunc(text, func(s string) string {
		switch {
		case strings.HasPrefix(s, "longshore-agent"):
			return "longshore-agent VERSION"
		case len(s) == 64:
			return "DIGEST"
		case strings.HasSuffix(s, "…"):
			return "DIGEST…"
		case strings.HasPrefix(s, "process"):
			return "process N"
		case strings.HasPrefix(s, "web"):
			return "web ✓ healthy"
		case strings.HasPrefix(s, "next check"): // not told while it happens
			return ""
		case strings.HasPrefix(s, "next try"):
			return "next try in N s"
		case strings.HasPrefix(s, "SIZE"):
			return "SIZE    "
		case strings.HasSuffix(s, "iB"):
			return "N KiB"
		case strings.Contains(s, "iB "):
			return "N KiB   "
		case strings.HasSuffix(s, "Z"):
			return "TIME"
		}
		return "N s"
	})
}

// mistaken prepares what mistakes are made with: files, an agent without containerd, servers that do not serve, a full disk.
func (w *writer) mistaken() {
	t := w.t
	locked := testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithCredentials("ci", "robot"))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are accepted by the kernel, and nothing reads them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	full := filepath.Join(w.box.Dir(), "full")
	w.stands["LOCKED"], w.stands["SILENT"] = locked.Host, silent.Addr().String()
	w.stands["CLOSED"], w.stands["EXPIRED"], w.stands["FULL"] = freeAddress(t), w.expired(), full
	table := fmt.Sprintf("lsmist%d", os.Getpid())
	if err := w.box.OwnTable(t.Context(), os.Stderr, table); err != nil {
		t.Fatal(err)
	}
	script := `
		install -D -t bin "$(command -v longshore-agent)" && mkdir full && mount -t tmpfs -o size=64k tmpfs full && { head -c 1M /dev/zero >full/file; longshore key generate other; } &&
		longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub --config-dir . --poll 1h \
			--data-dir data --run-dir run --containerd CLOSED.sock --network-table TABLE --network-pool 10.219.0.0/16 &&
		sed 's,run$,other-run,; s,data$,other-data,' agent.yaml >other.yaml && sed "s,: .*/data,: $PWD/full/data," agent.yaml >full.yaml &&
		sed 's/^state:/stat:/; s/interval: .*/interval: often/' agent.yaml >typing.yaml && printf 'device: press-07\n  state: x\n' >torn.yaml &&
		cp -r line-monitor typing && sed 's/image:/imgae:/' line-monitor/compose.yaml >typing/compose.yaml &&
		longshore fleet init --name plant --registry harbor.acme.example/plant --component components/line-monitor:1.4.0 --device press-07 plant &&
		{ longshore-agent run --config agent.yaml >agent.log 2>&1 & } &&
		for i in $(seq 1200); do [ -S run/agent.sock ] && break; sleep 0.05; done; longshore-agent sync --config agent.yaml --timeout 60s; cat agent.log`
	for from, to := range map[string]string{"harbor.acme.example": w.server.Host, "CLOSED": filepath.Join(w.box.Dir(), "containerd"), "TABLE": table} {
		script = strings.ReplaceAll(script, from, to)
	}
	if out, err := w.shell(script); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// expired is the address of a registry whose certificate was valid for a day in 2024; expired.pem is the certificate.
func (w *writer) expired() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	begin := time.Date(2024, 11, 20, 12, 0, 0, 0, time.UTC)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: begin, NotAfter: begin.Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.box.Dir(), "expired.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	w.t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
