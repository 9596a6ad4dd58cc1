package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/longshore-dev/longshore/testenv"
)

// BenchmarkMirror copies an image of 300 MiB in 8 layers with its component and the device's state, verified, and beside it the image alone
// with oras cp -r, which verifies nothing. Each copy goes to a new registry. All registries are distribution on a file system.
func BenchmarkMirror(b *testing.B) {
	m := newMirroring(b)
	oras := testenv.Program(b, "oras")
	m.stock(160, 64, 32, 16, 12, 8, 6, 2)
	m.run(m.longshore, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", m.source.Reference(component), m.source.Reference("plant/state"))
	var ours, theirs cost
	for n := 0; b.Loop(); n++ {
		mirror := func() {
			ours.add(m.run(m.longshore, "mirror", "-q", "--key", "release.pub", m.source.Reference("plant/state"), m.registry().Host))
		}
		copied := func() {
			theirs.add(m.run(oras, "cp", "-r", "--no-tty", "--from-plain-http", "--to-plain-http", m.source.Reference("library/large:1"), m.registry().Reference("library/large:1")))
		}
		for i := range 2 {
			if (n+i)%2 == 0 {
				mirror()
			} else {
				copied()
			}
		}
	}
	for whose, c := range map[string]cost{"ours": ours, "oras": theirs} {
		b.ReportMetric(float64(c.wall.Milliseconds())/float64(b.N), whose+"-ms")
		b.ReportMetric(float64(c.cpu.Milliseconds())/float64(b.N), whose+"-cpu-ms")
	}
}

// BenchmarkMirrorAgain mirrors 100 devices to a site that has all of it already, and counts the requests at both registries.
func BenchmarkMirrorAgain(b *testing.B) {
	const devices = 100
	m := newMirroring(b)
	m.stock(1)
	var fleet strings.Builder
	fmt.Fprintf(&fleet, "fleet: acme\nregistry: %s\napplications: {large: {component: components/large, version: 1.0.0}}\n", m.source.Reference("plant"))
	fleet.WriteString("deployments: {large: {application: large, select: \"*\"}}\ndevices:\n")
	for i := range devices {
		fmt.Fprintf(&fleet, "  - {id: press-%03d}\n", i)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(m.dir, "fleet"), 0o755), os.WriteFile(filepath.Join(m.dir, "fleet", "fleet.yaml"), []byte(fleet.String()), 0o644)); err != nil {
		b.Fatal(err)
	}
	m.run(m.longshore, "fleet", "publish", "-q", "--key", "release.key", "fleet")
	site := m.registry()
	mirror := func(check string) (said struct{ Manifests int }) {
		out := m.run(m.longshore, "mirror", "-o", "json", "--check", check, "--key", "release.pub", m.source.Reference("plant/state"), site.Host).out
		if err := json.Unmarshal(out, &said); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		return said
	}
	manifests := mirror("signatures").Manifests
	for _, check := range []string{"signatures", "tags"} {
		b.Run(check, func(b *testing.B) {
			for b.Loop() {
				requests, blobs := 0, 0
				m.source.Faults.Forget()
				site.Faults.Forget()
				mirror(check)
				for _, r := range []*testenv.RegistryServer{m.source, site} {
					requests += len(r.Faults.Requests("", ""))
					blobs += len(r.Faults.Requests("GET", "/blobs/")) + len(r.Faults.Requests("POST", "/blobs/"))
				}
				b.ReportMetric(float64(requests)/float64(manifests), "requests/manifest")
				b.ReportMetric(float64(blobs), "blobs/mirror")
			}
		})
	}
}

// cost is the time of a program that ended, and of its processors; and what it printed.
type cost struct {
	wall, cpu time.Duration
	out       []byte
}

func (c *cost) add(more cost) { c.wall, c.cpu = c.wall+more.wall, c.cpu+more.cpu }

// component is the one that all devices run.
const component = "plant/components/large:1.0.0"

type mirroring struct {
	b         *testing.B
	dir       string
	longshore string
	source    *testenv.RegistryServer
}

func newMirroring(b *testing.B) *mirroring {
	b.Helper()
	dir := b.TempDir()
	m := &mirroring{b: b, dir: dir, longshore: filepath.Join(dir, "bin", "longshore")} // dir/longshore is its cache
	if err := testenv.BuildOwn(b.Context(), filepath.Dir(m.longshore), "longshore"); err != nil {
		b.Fatal(err)
	}
	m.source = m.registry()
	return m
}

// registry starts an empty one.
func (m *mirroring) registry() *testenv.RegistryServer {
	m.b.Helper()
	return testenv.Registry(m.b, testenv.Distribution, testenv.WithStorage(m.b.TempDir()))
}

// run runs a program and returns what that took.
func (m *mirroring) run(program string, args ...string) cost {
	m.b.Helper()
	cmd := exec.CommandContext(m.b.Context(), program, args...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "HOME="+m.dir, "XDG_CACHE_HOME="+m.dir, "LONGSHORE_KEY_PASSWORD=bench")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		m.b.Fatalf("%s %q: %v\n%s%s", program, args, err, stdout.String(), stderr.String())
	}
	return cost{time.Since(begin), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), stdout.Bytes()}
}

// stock publishes an image with layers of so many MiB, and the component that runs it.
func (m *mirroring) stock(layers ...int) {
	m.b.Helper()
	image, err := testenv.BuildImage("linux/amd64", v1.Config{})
	random := rand.NewChaCha8([32]byte{})
	for _, mebibytes := range layers {
		data := make([]byte, mebibytes<<20)
		_, _ = random.Read(data) // never fails
		if err == nil {
			image, err = mutate.AppendLayers(image, static.NewLayer(data, types.OCILayer))
		}
	}
	if err != nil {
		m.b.Fatal(err)
	}
	tag, err := name.NewTag(m.source.Reference("library/large:1"), name.Insecure)
	if err == nil {
		err = remote.Write(tag, image)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(m.dir, "large"), 0o755)
	}
	if err == nil {
		compose := "services:\n  large:\n    image: " + tag.String() + "\n"
		err = os.WriteFile(filepath.Join(m.dir, "large", "compose.yaml"), []byte(compose), 0o644)
	}
	if err != nil {
		m.b.Fatal(err)
	}
	m.run(m.longshore, "key", "generate", "release")
	m.run(m.longshore, "component", "push", "-q", "./large", m.source.Reference(component))
}
