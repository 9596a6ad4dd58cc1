package enroll_test

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/enroll"
)

const whole = `url: https://fleet.acme.example:8443/
trust: trust.yaml
lifetime: 48h
authority: {dir: /srv/ca, trustDomain: plant.acme.example, manager: line, key: hashivault://ca, keyPasswordFile: pin}
source: {registry: oci://harbor.acme.example/plant/state, margo: true}
registry:
  caFile: ca.pem
  harbor: {url: https://harbor.acme.example, project: plant, username: admin, passwordFile: secret, caFile: harbor.pem}
`

func TestParseSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want enroll.Settings
		host string
	}{
		"everything": {whole, enroll.Settings{
			URL: "https://fleet.acme.example:8443", Lifetime: 48 * time.Hour, Authority: enroll.Authority{Dir: "/srv/ca", TrustDomain: "plant.acme.example", Manager: "line", Key: "hashivault://ca", KeyPassword: "/etc/longshore/pin"},
			Registry: "harbor.acme.example/plant/state", Margo: true, Trust: "/etc/longshore/trust.yaml", CAFile: "/etc/longshore/ca.pem",
			Harbor: &enroll.Harbor{URL: "https://harbor.acme.example", Project: "plant", Username: "admin", PasswordFile: "/etc/longshore/secret", CAFile: "/etc/longshore/harbor.pem"},
		}, "harbor.acme.example"},
		"as little as possible": {"url: https://fleet\nsource: {margo: true}\n", enroll.Settings{
			URL: "https://fleet", Lifetime: enroll.DefaultLifetime, Authority: enroll.Authority{Dir: "/etc/longshore/ca", Manager: "main"}, Margo: true,
		}, ""},
		"a login": {"url: https://fleet\nsource: {margo: true}\nregistry: {login: {host: 'harbor.acme.example:5000', username: edge, passwordFile: /p}}\n", enroll.Settings{
			URL: "https://fleet", Lifetime: enroll.DefaultLifetime, Authority: enroll.Authority{Dir: "/etc/longshore/ca", Manager: "main"}, Margo: true,
			Login: &enroll.Login{Host: "harbor.acme.example:5000", Username: "edge", PasswordFile: "/p"},
		}, "harbor.acme.example:5000"},
	} {
		got, err := enroll.ParseSettings("/etc/longshore/enroll.yaml", []byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(&tt.want, got); d != "" || got.Host() != tt.host {
			t.Errorf("%s: host %q (-want +got):\n%s", name, got.Host(), d)
		}
	}
}

// The robot accounts of Harbor are credentials for the registry of the states, whether the port of HTTPS is written or not.
func TestParseSettingsOfHarbor(t *testing.T) {
	for _, tt := range []struct{ url, source, want string }{
		{"https://harbor.example", "registry: harbor.example/plant/state", ""},
		{"https://harbor.example:443", "registry: harbor.example/plant/state", ""},
		{"https://harbor.example", "registry: 'harbor.example:443/plant/state'", ""},
		{"https://harbor.example:8443", "margo: true", ""},
		{"https://harbor.example", "registry: ghcr.example/plant/state", "registry.harbor.url: is at harbor.example, and source.registry is at ghcr.example"},
		{"https://harbor.example:8443", "registry: harbor.example/plant/state", "registry.harbor.url: is at harbor.example:8443, and source.registry is at harbor.example"},
		{"harbor.example", "registry: ghcr.example/plant/state", "registry.harbor.url: not a web address with https and without a path"},
	} {
		text := "url: https://fleet\nsource: {" + tt.source + "}\nregistry: {harbor: {url: '" + tt.url + "', project: plant, username: admin, passwordFile: p}}\n"
		_, err := enroll.ParseSettings("f", []byte(text))
		if got := fmt.Sprint(err); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasSuffix(got, ": "+tt.want)) {
			t.Errorf("ParseSettings with Harbor at %s and {%s} = %v, want %q", tt.url, tt.source, err, tt.want)
		}
	}
}

// What is accepted can be used as it stands: paths are absolute, a device reaches the manager and a registry.
func FuzzParseSettings(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("url: https://a\nsource: {registry: a/b}\nregistry: {login: {username: a, passwordFile: b}}\nlifetime: 1m\n"))
	f.Add([]byte("url: https://:8443\nsource: {margo: true}\n"))
	f.Add([]byte("url: http://a\nsource: {}\nauthority: {dir: ''}\nregistry: {login: {}, harbor: {}}\nmore: 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := enroll.ParseSettings("/etc/longshore/enroll.yaml", data)
		if err != nil {
			if s != nil || !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrConfig) && !errors.Is(err, fault.ErrTooLarge) {
				t.Errorf("ParseSettings = %+v, %v", s, err)
			}
			return
		}
		paths := []string{s.Trust, s.CAFile, s.Authority.Dir, s.Authority.KeyPassword}
		if s.Login != nil {
			paths = append(paths, s.Login.PasswordFile)
		}
		if s.Harbor != nil {
			paths = append(paths, s.Harbor.PasswordFile, s.Harbor.CAFile)
		}
		for _, p := range paths {
			if p != "" && !filepath.IsAbs(p) {
				t.Errorf("path %q", p)
			}
		}
		if u, err := url.Parse(s.URL); err != nil || u.Scheme != "https" || u.Hostname() == "" || s.Lifetime < time.Minute || s.Registry == "" && !s.Margo || s.Login != nil && s.Harbor != nil {
			t.Errorf("ParseSettings = %+v", s)
		}
		if strings.ContainsAny(s.Registry, " \t\n@") || (s.Registry != "" || s.Login != nil || s.Harbor != nil) && s.Host() == "" {
			t.Errorf("repository %q of %q", s.Registry, s.Host())
		}
	})
}
