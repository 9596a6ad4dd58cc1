package auths_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/auths"
	"github.com/longshore-dev/longshore/testenv"
)

func put(t *testing.T, content string, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func entry(key, user, password string) string {
	return `"` + key + `":{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + `"}`
}

func of(paths ...string) auths.Files { return auths.Files{Paths: paths} }

func user(name string) auth.Credential { return auth.Credential{Username: name, Password: "pw"} }

func TestFind(t *testing.T) {
	tests := map[string]struct {
		explicit string
		env      map[string]string
		want     []string
	}{
		"nothing": {"", nil, nil},
		"home":    {"", map[string]string{"HOME": "/h"}, []string{"/h/.docker/config.json", "/h/.config/containers/auth.json"}},
		"all": {
			"/a.json",
			map[string]string{"HOME": "/h", "REGISTRY_AUTH_FILE": "/r.json", "DOCKER_CONFIG": "/d", "XDG_RUNTIME_DIR": "/run/u", "XDG_CONFIG_HOME": "/c"},
			[]string{"/a.json", "/r.json", "/d/config.json", "/run/u/containers/auth.json", "/c/containers/auth.json"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := auths.Find(tt.explicit, func(k string) string { return tt.env[k] })
			if diff := cmp.Diff(tt.want, got.Paths); diff != "" {
				t.Errorf("Find (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	docker := put(t, `{"auths":{`+entry("one.test", "host", "pw")+","+entry("https://old.test/v1/", "old", "pw")+","+
		entry("https://index.docker.io/v1/", "hub", "pw")+`,"token.test":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("u:"))+`","identitytoken":"refresh"}}}`, dir, "docker.json")
	podman := put(t, `{"auths":{`+entry("two.test/team/line", "line", "pw")+","+entry("two.test/team", "team", "pw")+","+
		entry("three.test", "three", "pw")+","+entry("three.test/a", "a", "pw")+","+entry("one.test", "shadowed", "pw")+`}}`, dir, "auth.json")
	empty := put(t, " \n", dir, "empty.json")
	files := of(filepath.Join(dir, "missing.json"), empty, docker, podman)
	tests := map[string]struct {
		host, repository string
		want             auth.Credential
	}{
		"host":                       {"one.test", "line/state", user("host")},
		"written with a scheme":      {"old.test", "x", user("old")},
		"docker.io":                  {"docker.io", "library/redis", user("hub")},
		"registry-1.docker.io":       {"registry-1.docker.io", "library/redis", user("hub")},
		"most specific":              {"two.test", "team/line/state", user("line")},
		"namespace":                  {"two.test", "team/other", user("team")},
		"exactly the key":            {"two.test", "team", user("team")},
		"not a part of a name":       {"two.test", "teamster/x", auth.EmptyCredential},
		"other namespace":            {"two.test", "x", auth.EmptyCredential},
		"no repository":              {"two.test", "", auth.EmptyCredential},
		"host beside its namespaces": {"three.test", "b/c", user("three")},
		"its namespace":              {"three.test", "a/c", user("a")},
		"unknown":                    {"four.test", "x", auth.EmptyCredential},
		"port is part of the name":   {"one.test:5000", "x", auth.EmptyCredential},
		"identity token":             {"token.test", "x", auth.Credential{RefreshToken: "refresh", Username: "u"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := files.Lookup(t.Context(), tt.host, tt.repository)
			if err != nil || got != tt.want {
				t.Errorf("Lookup(%s, %s) = %+v, %v, want %+v", tt.host, tt.repository, got, err, tt.want)
			}
		})
	}
}

func TestLookupReadsAnew(t *testing.T) {
	file := put(t, `{"auths":{`+entry("a.test", "before", "pw")+`}}`, t.TempDir(), "config.json")
	files := of(file)
	for _, name := range []string{"before", "after"} {
		put(t, `{"auths":{`+entry("a.test", name, "pw")+`}}`, file)
		if got, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || got != user(name) {
			t.Errorf("Lookup = %+v, %v, want %s", got, err, name)
		}
	}
}

func TestLookupOfBadFiles(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString([]byte("hunter2-without-a-colon"))
	for name, tt := range map[string]struct {
		content string
		is      error
	}{
		"not JSON":         {`{"auths":`, fault.ErrInvalid},
		"a list":           {`[]`, fault.ErrInvalid},
		"auths of text":    {`{"auths":"x"}`, fault.ErrInvalid},
		"entry of text":    {`{"auths":{"a.test":"x"}}`, fault.ErrInvalid},
		"not base64":       {`{"auths":{"a.test":{"auth":"%%%hunter2"}}}`, fault.ErrInvalid},
		"without a colon":  {`{"auths":{"a.test":{"auth":"` + secret + `"}}}`, fault.ErrInvalid},
		"too large":        {`{"x":"` + strings.Repeat("x", 2<<20) + `"}`, fault.ErrConfig},
		"helper not there": {`{"credHelpers":{"a.test":"longshore-test-missing"}}`, fault.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			file := put(t, tt.content, t.TempDir(), "config.json")
			_, err := of(file).Lookup(t.Context(), "a.test", "x")
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), file) {
				t.Errorf("Lookup = %v, want %v that names the file", err, tt.is)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), secret)) {
				t.Errorf("Lookup = %v, which repeats the secret", err)
			}
		})
	}
}

func TestStoreAndErase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "deep", "config.json")
	files := of(file, put(t, `{"auths":{`+entry("a.test", "podman", "pw")+`}}`, dir, "auth.json"))
	got, err := files.Store(t.Context(), "a.test", user("me"))
	if err != nil || got != file {
		t.Fatalf("Store = %q, %v, want %s", got, err, file)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
	if cred, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || cred != user("me") {
		t.Errorf("Lookup = %+v, %v", cred, err)
	}
	from, err := files.Erase(t.Context(), "a.test")
	if err != nil || len(from) != 2 {
		t.Errorf("Erase = %q, %v, want both files", from, err)
	}
	if cred, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || cred != auth.EmptyCredential {
		t.Errorf("Lookup after Erase = %+v, %v", cred, err)
	}
	if from, err := files.Erase(t.Context(), "a.test"); err != nil || from != nil {
		t.Errorf("Erase again = %q, %v, want nothing", from, err)
	}
	if _, err := (auths.Files{}).Store(t.Context(), "a.test", user("me")); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Store without a file = %v, want fault.ErrInvalid", err)
	}
	broken := put(t, `{"auths":`, dir, "broken.json")
	if _, err := of(broken).Store(t.Context(), "a.test", user("me")); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Store into a broken file = %v, want fault.ErrInvalid", err)
	}
	if data, err := os.ReadFile(broken); err != nil || string(data) != `{"auths":` {
		t.Errorf("the broken file is now %q, %v", data, err)
	}
}

// Whatever spelling of a registry is looked up is erased too, and nothing else.
func TestEraseEverySpelling(t *testing.T) {
	hub := []string{"https://index.docker.io/v1/", "https://index.docker.io/v2/", "index.docker.io", "docker.io", "registry-1.docker.io"}
	for host, spellings := range map[string][]string{
		"a.test":          {"a.test", "https://a.test", "http://a.test/", "https://a.test/v1/", "https://a.test/v2", "a.test/"},
		"docker.io":       hub,
		"index.docker.io": hub,
	} {
		for _, spelling := range spellings {
			others := entry("a.test/team", "team", "pw") + "," + entry("docker.io/team", "team", "pw") + "," + entry("a.test:5000", "port", "pw")
			file := put(t, `{"auths":{`+others+","+entry(spelling, "me", "pw")+`}}`, t.TempDir(), "config.json")
			files := of(file)
			if cred, err := files.Lookup(t.Context(), host, "x"); err != nil || cred != user("me") {
				t.Errorf("Lookup(%s) of %s = %+v, %v", host, spelling, cred, err)
			}
			if from, err := files.Erase(t.Context(), host); err != nil || len(from) != 1 || from[0] != file {
				t.Errorf("Erase(%s) of %s = %q, %v, want %s", host, spelling, from, err, file)
			}
			want := put(t, `{"auths":{`+others+`}}`, t.TempDir(), "config.json")
			if diff := cmp.Diff(entries(t, want), entries(t, file)); diff != "" {
				t.Errorf("after Erase(%s) of %s (-want +got):\n%s", host, spelling, diff)
			}
		}
	}
	file := put(t, `{"auths":{`+entry("a.test", "one", "pw")+","+entry("https://a.test/", "two", "pw")+`}}`, t.TempDir(), "config.json")
	if from, err := of(file).Erase(t.Context(), "a.test"); err != nil || len(from) != 1 {
		t.Errorf("Erase of two spellings = %q, %v, want the file once", from, err)
	}
	if cred, err := of(file).Lookup(t.Context(), "a.test", "x"); err != nil || cred != auth.EmptyCredential {
		t.Errorf("Lookup after Erase of two spellings = %+v, %v", cred, err)
	}
}

// entries are those of a file.
func entries(t *testing.T, file string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Auths map[string]any }
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d.Auths
}

// helper keeps one credential in a file, by the protocol of Docker's credential helpers.
const helper = `#!/bin/sh
f="$(dirname "$0")/kept"
case "$1" in
store) cat > "$f" ;;
get) if [ -e "$f" ]; then cat "$f"; else echo "credentials not found in native keychain"; exit 1; fi ;;
erase) cat > /dev/null; rm -f "$f" ;;
esac
`

func TestCredentialHelper(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the helper is a shell script")
	}
	dir := t.TempDir()
	program := put(t, helper, dir, "bin", "docker-credential-longshoretest")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"))
	for name, content := range map[string]string{
		"for one host": `{"credHelpers":{"a.test":"longshoretest"}}`,
		"for all":      `{"credsStore":"longshoretest"}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := put(t, content, dir, "config.json")
			files := of(file)
			if cred, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || cred != auth.EmptyCredential {
				t.Errorf("Lookup of nothing = %+v, %v", cred, err)
			}
			for _, want := range []auth.Credential{user("me"), {RefreshToken: "refresh"}} {
				if at, err := files.Store(t.Context(), "a.test", want); err != nil || at != "docker-credential-longshoretest (named in "+file+")" {
					t.Fatalf("Store = %q, %v, want the helper", at, err)
				}
				if cred, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || cred != want {
					t.Errorf("Lookup = %+v, %v, want %+v", cred, err, want)
				}
			}
			if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), "refresh") {
				t.Errorf("the file holds the secret: %s, %v", data, err)
			}
			if from, err := files.Erase(t.Context(), "a.test"); err != nil || len(from) != 1 || !strings.HasPrefix(from[0], "docker-credential-longshoretest ") {
				t.Errorf("Erase = %q, %v, want the helper", from, err)
			}
			if cred, err := files.Lookup(t.Context(), "a.test", "x"); err != nil || cred != auth.EmptyCredential {
				t.Errorf("Lookup after Erase = %+v, %v", cred, err)
			}
		})
	}
}

// A helper that hangs, also through a child that keeps its output open, is given up and ends, and so does the child. One that
// leaves something behind and has answered has answered.
func TestCredentialHelperThatHangs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes end in groups on Linux")
	}
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	for name, text := range map[string]string{
		"hangs":  "echo $$ >>" + pids + "\nexec sleep 600\n",
		"child":  "sleep 600 &\necho $! >>" + pids + "\necho $$ >>" + pids + "\nwait\n",
		"daemon": "sleep 600 &\necho $! >>" + pids + "\necho '{\"Username\":\"me\",\"Secret\":\"pw\"}'\n",
	} {
		program := put(t, "#!/bin/sh\n"+text, dir, "bin", "docker-credential-longshore-"+name)
		if err := os.Chmod(program, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	for name, gone := range map[string]bool{"hangs": true, "child": true, "daemon": false} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(pids)
			files := of(put(t, `{"credHelpers":{"a.test":"longshore-`+name+`"}}`, dir, name+".json"))
			if files.Limit = time.Second; !gone {
				files.Limit = time.Minute
			}
			var data []byte
			for data == nil { // on a busy machine no process may begin within the limit
				cred, err := files.Lookup(t.Context(), "a.test", "x")
				switch {
				case gone && (!errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(err.Error(), "did not answer within "+files.Limit.String()) || fault.Hint(err) == ""):
					t.Fatalf("Lookup = %+v, %v, want an error that says that it took too long", cred, err)
				case !gone && (err != nil || cred != user("me")):
					t.Fatalf("Lookup = %+v, %v", cred, err)
				}
				if data, err = os.ReadFile(pids); err != nil && files.Limit >= time.Minute {
					t.Fatal(err)
				}
				files.Limit *= 2
			}
			for line := range strings.Lines(string(data)) {
				pid, err := strconv.Atoi(strings.TrimSpace(line))
				if err != nil {
					t.Fatal(err)
				}
				if !gone {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					continue
				}
				testenv.Eventually(t, time.Minute, fmt.Sprintf("end of process %d", pid), func() error {
					state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
					if err == nil && !strings.Contains(string(state), ") Z ") {
						return errors.New("it runs")
					}
					return nil
				})
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := of(filepath.Join(dir, "child.json")).Lookup(ctx, "a.test", "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lookup with a context that ends = %v", err)
	}
}

func FuzzAuthFile(f *testing.F) {
	f.Add(`{"auths":{` + entry("a.test", "u", "p") + `}}`)
	f.Add(`{"auths":{"a.test/x":{"auth":"dTpw"},"https://a.test/v1/":null},"credHelpers":null}`)
	f.Fuzz(func(t *testing.T, content string) {
		if strings.Contains(content, "cred") {
			return // no programs are run here
		}
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := of(file).Lookup(t.Context(), "a.test", "x/y")
		if err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Lookup of %q = %v, want fault.ErrInvalid", content, err)
		}
	})
}
