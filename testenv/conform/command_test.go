package conform

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

// The command that docs/development.md names checks a longshore-fleet that runs as a process, and its exit code says what came of it.
func TestCommand(t *testing.T) {
	box := testenv.NewBox(t)
	s, err := fleetserver.Start(t.Context(), box, fleetserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	anchor, _, err := s.Anchor()
	if err != nil {
		t.Fatal(err)
	}
	c, k, err := s.CA.Issue(identity.Name{TrustDomain: fleetserver.Domain, Manager: fleetserver.Manager, Client: "test-1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := file("test-1.crt", c), file("test-1.key", k)
	ca := file("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: anchor.Raw}))
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	conform := func(args ...string) (code int, stdout, stderr string) {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "-buildvcs=false", "./cmd/testenv", "conform"}, args...)...)
		cmd.Dir = root
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out), errs.String()
	}
	target := []string{"--base-url", s.URL, "--cert", cert, "--key", key, "--ca", ca}
	code, out, errs := conform(target...)
	if code != 0 || !strings.Contains(out, "capabilities.") || !strings.Contains(out, "needs a second accepted client") || !strings.Contains(out, " 0 failed") {
		t.Errorf("conform = %d\n%s%s", code, out, errs)
	}
	var r Report
	code, out, errs = conform(append(target, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || r.Count(Passed) < len(Cases())/2 || r.Count(Failed) != 0 {
		t.Errorf("conform -o json = %d, %v: %d passed, %d failed\n%s", code, err, r.Count(Passed), r.Count(Failed), errs)
	}
	// A client that the manager does not accept meets nothing of the specification.
	if err := os.WriteFile(s.Path("clients.yaml"), []byte("accept: [test-2]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := conform(target...); code != 1 || !strings.Contains(errs, "cases failed") || strings.Contains(out, " 0 failed") {
		t.Errorf("conform at a manager that fails cases = %d\n%s%s", code, out, errs)
	}
	s.Kill()
	if code, out, errs := conform(target...); code != 1 || errs == "" {
		t.Errorf("conform without a manager = %d\n%s%s", code, out, errs)
	}
	if code, _, errs := conform("--base-url", s.URL, "--cert", filepath.Join(dir, "nowhere")); code != 1 || !strings.Contains(errs, "--cert, --key: ") {
		t.Errorf("conform without a certificate = %d\n%s", code, errs)
	}
}
