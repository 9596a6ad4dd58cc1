package fleetserver_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // to damage databases

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

type server struct {
	*fleetserver.Server
	t *testing.T
}

func start(t *testing.T, o fleetserver.Options) *server {
	t.Helper()
	box := testenv.NewBox(t)
	s := &server{t: t}
	t.Cleanup(func() {
		if t.Failed() && s.Server != nil {
			t.Log(s.Log())
		}
	})
	var err error
	if s.Server, err = fleetserver.Start(t.Context(), box, o); err != nil {
		t.Fatal(err)
	}
	return s
}

// as is a client of the server.
func (s *server) as(client string) *http.Client {
	s.t.Helper()
	c, err := s.HTTP(client)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.CloseIdleConnections)
	return c
}

func (s *server) do(c *http.Client, method, path, body string, header ...string) *fleetserver.Answer {
	s.t.Helper()
	a, err := s.Do(s.t.Context(), c, method, path, strings.NewReader(body), header...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// register reports capabilities and returns the status code.
func (s *server) register(c *http.Client, device string) int {
	s.t.Helper()
	return s.do(c, "PUT", "/api/v1/capabilities/"+device, fmt.Sprintf(`{"properties":{"id":%q,"vendor":"Acme","modelNumber":"P7","serialNumber":"1"}}`, device)).Code
}

// command runs longshore-fleet with the server's database.
func (s *server) command(args ...string) (string, int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.Program, append(args[:1:1], append([]string{"--database", s.Path("fleet.db")}, args[1:]...)...)...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (s *server) lose(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if err := os.RemoveAll(s.Path(name)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *server) restart() {
	s.t.Helper()
	if err := s.Restart(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) views(want string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), "GET", s.Open+"/fleet/v1/devices", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	res, err := tr.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil || !strings.Contains(b.String(), want) {
		s.t.Errorf("GET devices = %s, %v, want %s", b.String(), err, want)
	}
}

const everything = "fleet.db fleet.db-wal fleet.db-shm states"

// A manager that is left with nothing but the registry, its policy and its certificate finds the state of every device again. What a
// device reports from then on is new to it, which the device sees by 201.
func TestEverythingLost(t *testing.T) {
	s := start(t, fleetserver.Options{})
	devices := []string{"press-07", "press-08", "press-09"}
	served := map[string][]byte{}
	for i, d := range devices {
		if err := s.Publish(t.Context(), d, uint64(i+3), "web", "db"); err != nil {
			t.Fatal(err)
		}
		c := s.as(d)
		if code := s.register(c, d); code != 201 {
			t.Errorf("PUT %s = %d", d, code)
		}
		if a := s.do(c, "GET", "/api/v1/deployments", ""); a.Code != 200 {
			t.Fatalf("GET as %s = %d %s", d, a.Code, a.Body)
		} else {
			served[d] = a.Body
		}
	}
	s.Kill()
	s.lose(strings.Fields(everything)...)
	s.restart()
	for _, d := range devices {
		c := s.as(d)
		if a := s.do(c, "GET", "/api/v1/deployments", ""); a.Code != 200 || !bytes.Equal(a.Body, served[d]) {
			t.Errorf("GET as %s = %d %s, want %s", d, a.Code, a.Body, served[d])
		}
		if code := s.register(c, d); code != 201 {
			t.Errorf("PUT %s at the new database = %d, want 201", d, code)
		}
		if code := s.register(c, d); code != 200 {
			t.Errorf("PUT %s again = %d, want 200", d, code)
		}
	}
	s.views(`"id": "press-09"`)
}

// A backup is made while reports come in, and has all that was acknowledged before it; restored in place of a database that was killed
// and damaged, it is the database, and every device's next report is answered as new.
func TestBackupAndRestore(t *testing.T) {
	s := start(t, fleetserver.Options{})
	c := s.as("press-07")
	s.register(c, "press-07")
	ctx, stop := context.WithCancel(t.Context())
	acknowledged, done := make(chan int, 1), make(chan struct{})
	go func() { // reports while the backup is made
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			body := fmt.Sprintf(`{"properties":{"id":"press-07/c%d","vendor":"Acme","modelNumber":"P7","serialNumber":"1"}}`, i%100)
			a, err := s.Do(ctx, c, "PUT", fmt.Sprintf("/api/v1/capabilities/press-07/c%d", i%100), strings.NewReader(body))
			if err == nil && a.Code/100 == 2 && i >= 20 {
				select {
				case acknowledged <- i:
				default:
				}
			}
		}
	}()
	<-acknowledged
	file := s.Path("backup.db")
	out, code := s.command("backup", file)
	stop()
	<-done
	if code != 0 || !strings.Contains(out, "wrote "+file) {
		t.Fatalf("backup = %d %s", code, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("backup: %v, %v", info.Mode(), err)
	}
	if out, code := s.command("restore", file); code != 6 || !strings.Contains(out, fmt.Sprint("open in process ", s.Process.PID())) || !strings.Contains(out, "systemctl stop") {
		t.Errorf("restore while the server runs = %d %s", code, out)
	}
	late := s.as("press-99")
	s.register(late, "press-99") // not in the backup
	s.Kill()
	before, err := os.ReadFile(s.Path("fleet.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range badBackups(t, s, file) {
		out, code := s.command("restore", bad.file)
		if code != bad.code || !strings.Contains(out, bad.want) || !strings.Contains(out, "hint: ") {
			t.Errorf("restore of %s = %d %s", name, code, out)
		}
		if now, err := os.ReadFile(s.Path("fleet.db")); err != nil || !bytes.Equal(now, before) {
			t.Errorf("restore of %s changed the database, %v", name, err)
		}
	}
	if err := os.WriteFile(s.Path("fleet.db"), bytes.Repeat([]byte("damaged "), 1<<12), 0o600); err != nil {
		t.Fatal(err)
	}
	older := s.changed(file, "older.db", "DROP TABLE backup") // by a version that did not note the time
	if out, code := s.command("restore", older); code != 0 || !strings.Contains(out, "devices from "+older+"\n") {
		t.Fatalf("restore = %d %s", code, out)
	}
	if out, code := s.command("restore", file); code != 0 || !strings.Contains(out, "devices from "+file+" of ") {
		t.Fatalf("restore = %d %s", code, out)
	}
	if left, _ := os.ReadDir(s.Dir); strings.Contains(fmt.Sprint(left), ".restore-") || strings.Contains(fmt.Sprint(left), ".backup-") {
		t.Errorf("left behind: %v", left)
	}
	s.restart()
	s.views(`"id": "press-07/c20"`)
	for _, want := range []int{201, 200} {
		if code := s.register(c, "press-07"); code != want {
			t.Errorf("PUT after the restore = %d, want %d", code, want)
		}
	}
	if code := s.register(late, "press-99"); code != 201 {
		t.Errorf("PUT of a device that came after the backup = %d", code)
	}
}

// changed is a copy of a backup in which a statement was executed.
func (s *server) changed(backup, name, statement string) string {
	s.t.Helper()
	data, err := os.ReadFile(backup)
	if err == nil {
		err = os.WriteFile(s.Path(name), data, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+s.Path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(s.t.Context(), statement); err != nil {
		s.t.Fatal(err)
	}
	return s.Path(name)
}

type badBackup struct {
	file, want string
	code       int
}

// badBackups are files that must not be restored.
func badBackups(t *testing.T, s *server, good string) map[string]badBackup {
	t.Helper()
	change := func(name, statement string) string { return s.changed(good, name, statement) }
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		if err := os.WriteFile(s.Path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return s.Path(name)
	}
	holes := bytes.Clone(data)
	clear(holes[4096:8192])
	return map[string]badBackup{
		"half a file":        {write("half.db", data[:len(data)/2]), "damaged", 2},
		"a file with a hole": {write("holes.db", holes), "damaged", 2},
		"no database":        {write("text.db", []byte("hello")), "damaged", 2},
		"an empty file":      {write("empty.db", nil), "damaged", 2},
		"another database":   {change("other.db", "DROP TABLE devices"), "damaged", 2},
		"a newer version":    {change("newer.db", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)"), "newer version", 2},
	}
}

// A backup that is interrupted leaves the one before; a restore that is interrupted, the database. Both are killed at random moments.
func TestInterruptedBackup(t *testing.T) {
	s := start(t, fleetserver.Options{})
	c := s.as("press-07")
	s.register(c, "press-07")
	file := s.Path("backup.db")
	if out, code := s.command("backup", file); code != 0 {
		t.Fatal(out)
	}
	kill := func(after time.Duration, args ...string) {
		cmd := exec.CommandContext(t.Context(), s.Program, append(args, "--database", s.Path("fleet.db"))...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(after)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for i := range 8 {
		kill(time.Duration(i*i)*3*time.Millisecond, "backup", file)
	}
	s.Kill()
	for i := range 8 {
		kill(time.Duration(i*i)*3*time.Millisecond, "restore", file)
	}
	s.restart()
	s.views(`"id": "press-07"`)
	s.Kill()
	if out, code := s.command("restore", file); code != 0 {
		t.Errorf("restore of the backup that was there before = %d %s", code, out)
	}
	s.restart()
	s.views(`"id": "press-07"`)
}

// A poll that finds nothing new needs neither the registry nor the database: it is answered while both are gone.
func TestPollNeedsNothing(t *testing.T) {
	s := start(t, fleetserver.Options{})
	clients := []string{"press-07", "press-08", "press-09"}
	etags := map[string]string{}
	for _, client := range clients {
		if err := s.Publish(t.Context(), client, 1, "web"); err != nil {
			t.Fatal(err)
		}
		a := s.do(s.as(client), "GET", "/api/v1/deployments", "")
		if etags[client] = a.Header.Get("ETag"); a.Code != 200 {
			t.Fatalf("GET = %d %s", a.Code, a.Body)
		}
	}
	s.Registry.Down()
	s.lose("fleet.db", "fleet.db-wal", "fleet.db-shm") // every query fails from now on
	for range 3 {
		for _, client := range clients {
			c := s.as(client)
			if a := s.do(c, "GET", "/api/v1/deployments", "", "If-None-Match", etags[client]); a.Code != 304 {
				t.Errorf("poll = %d %s", a.Code, a.Body)
			}
			if code := s.register(c, client); code != 503 {
				t.Errorf("PUT without a database = %d, want 503", code)
			}
		}
	}
}
