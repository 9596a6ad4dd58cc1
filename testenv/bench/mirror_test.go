package bench

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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
	m := &mirroring{b: b, dir: b.TempDir(), oras: testenv.Program(b, "oras")}
	if err := testenv.BuildOwn(b.Context(), filepath.Join(m.dir, "bin"), "longshore"); err != nil {
		b.Fatal(err)
	}
	m.source = m.registry()
	m.stock()
	var ours, theirs cost
	for n := 0; b.Loop(); n++ {
		mirror := func() {
			ours.add(m.run(filepath.Join(m.dir, "bin", "longshore"), "mirror", "-q", "--key", "release.pub", m.source.Reference("plant/state"), m.registry().Host))
		}
		copied := func() {
			theirs.add(m.run(m.oras, "cp", "-r", "--no-tty", "--from-plain-http", "--to-plain-http", m.source.Reference("library/large:1"), m.registry().Reference("library/large:1")))
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

// cost is the time of a program that ended, and of its processors.
type cost struct{ wall, cpu time.Duration }

func (c *cost) add(more cost) { c.wall, c.cpu = c.wall+more.wall, c.cpu+more.cpu }

type mirroring struct {
	b      *testing.B
	dir    string
	oras   string
	source *testenv.RegistryServer
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
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		m.b.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return cost{time.Since(begin), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
}

// stock publishes the image, and a signed state that needs it.
func (m *mirroring) stock() {
	m.b.Helper()
	image, err := testenv.BuildImage("linux/amd64", v1.Config{})
	random := rand.NewChaCha8([32]byte{})
	for _, mebibytes := range []int{160, 64, 32, 16, 12, 8, 6, 2} {
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
	longshore := filepath.Join(m.dir, "bin", "longshore")
	component := m.source.Reference("plant/components/large:1.0.0")
	m.run(longshore, "key", "generate", "release")
	m.run(longshore, "component", "push", "-q", "./large", component)
	m.run(longshore, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, m.source.Reference("plant/state"))
}
