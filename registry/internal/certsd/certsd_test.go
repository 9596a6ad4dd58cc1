package certsd_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
)

const whole = `
server = "https://registry-1.docker.io"
ca = ["/etc/ssl/hub.pem"]

# not in the order of their names
[host."https://site-proxy.test:5000"]
  capabilities = ["pull", "resolve"]
  ca = "proxy.pem"
  client = [["proxy.cert", "proxy.key"], ["both.pem", ""]]
  dial_timeout = "200ms"
  [host."https://site-proxy.test:5000".header]
    x-site = "press-hall"
    x-many = ["a", "b"]

[host."http://archive.test/v2/hub"]
  capabilities = ["pull"]
  override_path = true
  skip_verify = true

[host."https://abc.test/mirror"]

[host."https://nothing.test"]
  capabilities = ["push"]
`

func TestParse(t *testing.T) {
	got, err := certsd.Parse("/certs/docker.io/hosts.toml", []byte(whole))
	if err != nil {
		t.Fatalf("Parse = %v", err)
	}
	want := certsd.Config{
		Server: &certsd.Host{
			Scheme: "https", Host: "registry-1.docker.io", Path: "/v2", Pull: true, Resolve: true, CAFiles: []string{"/etc/ssl/hub.pem"},
		},
		Mirrors: []certsd.Host{
			{
				Scheme: "https", Host: "site-proxy.test:5000", Path: "/v2", Pull: true, Resolve: true,
				CAFiles: []string{"/certs/docker.io/proxy.pem"},
				Pairs: [][2]string{
					{"/certs/docker.io/proxy.cert", "/certs/docker.io/proxy.key"},
					{"/certs/docker.io/both.pem", "/certs/docker.io/both.pem"},
				},
				Header: http.Header{"X-Site": {"press-hall"}, "X-Many": {"a", "b"}},
			},
			{Scheme: "http", Host: "archive.test", Path: "/v2/hub", Pull: true, SkipVerify: true},
			{Scheme: "https", Host: "abc.test", Path: "/mirror/v2", Pull: true, Resolve: true},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
}

func TestParseKeepsTheOrder(t *testing.T) {
	for name, text := range map[string]string{
		"tables":        "[host.\"https://z.test\"]\n[host.\"https://a.test\"]\n[host.\"https://m.test\"]\n",
		"sub-tables":    "[host.\"https://z.test\".header]\nx=\"1\"\n[host.\"https://a.test\"]\n[host.\"https://m.test\"]\n",
		"dotted keys":   "host.\"https://z.test\".skip_verify = true\nhost.\"https://a.test\".skip_verify = true\nhost.\"https://m.test\".skip_verify = true\n",
		"without https": "[host.\"z.test\"]\n[host.\"a.test\"]\n[host.\"m.test\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := certsd.Parse("hosts.toml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range c.Mirrors {
				got = append(got, m.Host)
			}
			if strings.Join(got, " ") != "z.test a.test m.test" {
				t.Errorf("mirrors = %q, want the order of the file", got)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := map[string]struct{ text, says string }{
		"not TOML":            {"server = ", "1:"},
		"not UTF-8":           {"server = \"\xff\"", "hosts.toml:"},
		"unknown key":         {"\nsevrer = \"https://a.test\"", "2:1: unknown key sevrer"},
		"unknown host key":    {"[host.\"https://a.test\"]\ncapabilites = []", "unknown key"},
		"duplicate":           {"server = \"a\"\nserver = \"b\"", "hosts.toml:"},
		"wrong type":          {"server = 5", "hosts.toml:"},
		"skip_verify of text": {"[host.\"https://a.test\"]\nskip_verify = \"yes\"", "hosts.toml:"},
		"scheme":              {"server = \"ftp://a.test\"", "ftp"},
		"password in address": {"[host.\"https://u:p@a.test\"]", "not an address"},
		"query":               {"server = \"https://a.test/?x=1\"", "not an address"},
		"no host":             {"server = \"https://\"", "not an address"},
		"empty host":          {"[host.\"\"]", "without an address"},
		"capability":          {"[host.\"https://a.test\"]\ncapabilities = [\"pul\"]", `"pul"`},
		"ca of numbers":       {"ca = [1]", "ca"},
		"ca of a table":       {"[host.\"https://a.test\".ca]\nx=1", "hosts.toml"},
		"client triple":       {"client = [[\"a\",\"b\",\"c\"]]", "client"},
		"header with a break": {"[header]\nx = \"a\\r\\nb: c\"", "header"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := certsd.Parse("hosts.toml", []byte(tt.text))
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Parse = %v, want fault.ErrInvalid that says %q", err, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "u:p") {
				t.Errorf("Parse = %v, which repeats the password", err)
			}
		})
	}
	if _, err := certsd.Parse("hosts.toml", nil); err != nil {
		t.Errorf("Parse of an empty file = %v", err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	put := func(folder, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, "hosts.toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("one.test", `server = "https://one"`)
	put("two.test_5000_", `server = "https://two"`)
	put("_default", `server = "https://default"`)
	if err := os.MkdirAll(filepath.Join(dir, "empty.test"), 0o755); err != nil {
		t.Fatal(err)
	}
	put("large.test", "#"+strings.Repeat("x", 2<<20))
	for host, want := range map[string]string{"one.test": "one", "two.test:5000": "two", "other.test": "default"} {
		c, err := certsd.Load(dir, host)
		if err != nil || c.Server == nil || c.Server.Host != want {
			t.Errorf("Load(%s) = %+v, %v, want %s", host, c.Server, err, want)
		}
	}
	if c, err := certsd.Load(dir, "empty.test"); err != nil || c.Server != nil { // as for containerd, its own folder counts
		t.Errorf("Load of an empty folder = %+v, %v, want nothing", c, err)
	}
	if _, err := certsd.Load(dir, "large.test"); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("Load(large.test) = %v, want fault.ErrTooLarge", err)
	}
	if c, err := certsd.Load("", "one.test"); err != nil || c.Server != nil || c.Mirrors != nil {
		t.Errorf("Load without a folder = %+v, %v, want nothing", c, err)
	}
	if c, err := certsd.Load(filepath.Join(dir, "missing"), "one.test"); err != nil || c.Server != nil {
		t.Errorf("Load of a missing folder = %+v, %v, want nothing", c, err)
	}
}

func FuzzHosts(f *testing.F) {
	f.Add(whole)
	f.Add("[host.\"https://a.test\"]\nclient = [\"a\", [\"b\", \"c\"]]\n")
	f.Add("host = {\"https://a.test\" = {ca = \"x\"}}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := certsd.Parse("/certs/h/hosts.toml", []byte(text))
		if err != nil {
			return
		}
		for _, m := range c.Mirrors {
			if m.Host == "" || m.Scheme != "http" && m.Scheme != "https" {
				t.Errorf("Parse gave a mirror without an address: %+v", m)
			}
		}
	})
}
