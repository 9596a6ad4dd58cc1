package registry_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) {
	testenv.SideBySide(4) // publishers that race mostly wait
	goleak.VerifyTestMain(m, testenv.LeakOptions()...)
}

// newClient makes a client that is closed when the test ends, with an empty home unless the test sets one.
func newClient(t testing.TB, o registry.Options) *registry.Client {
	t.Helper()
	if o.Getenv == nil {
		o.Getenv = environment(map[string]string{"HOME": t.TempDir()})
	}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	c, err := registry.New(o)
	if err != nil {
		t.Fatalf("New = %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func environment(m map[string]string) func(string) string {
	return func(key string) string { return m[key] }
}

// clientFor makes a client that reaches s as it wants to be reached.
func clientFor(t testing.TB, s *testenv.RegistryServer) *registry.Client {
	t.Helper()
	return clientThatWaits(t, s, 0)
}

// busyTagWait is the wait of tests in which several write one tag on a machine that may hold each of them up.
const busyTagWait = 400 * time.Millisecond

// clientThatWaits is clientFor with another wait before it looks whether a tag has held.
func clientThatWaits(t testing.TB, s *testenv.RegistryServer, wait time.Duration) *registry.Client {
	t.Helper()
	return newClient(t, registry.Options{
		RetryBudget: time.Second, TagWait: wait,
		CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile, Username: s.Username, Password: s.Password,
	})
}

func openName(t testing.TB, c *registry.Client, name string) *registry.Repository {
	t.Helper()
	ref, err := registry.ParseReference(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Open(t.Context(), ref)
	if err != nil {
		t.Fatalf("Open(%q) = %v", name, err)
	}
	return r
}

func writeFile(t testing.TB, content string, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// requests waits until so many matching requests have ended on the server's side, which may be after the client had its
// answer, and returns what there is.
func requests(t testing.TB, s *testenv.RegistryServer, method, path string, n int) []testenv.Request {
	t.Helper()
	_ = testenv.Await(t.Context(), time.Minute, func() error {
		if got := len(s.Faults.Requests(method, path)); got < n {
			return fmt.Errorf("%d requests", got)
		}
		return nil
	})
	return s.Faults.Requests(method, path)
}
