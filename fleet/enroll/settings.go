package enroll

import (
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/fleet"
)

// Settings are the content of enroll.yaml.
type Settings struct {
	URL       string // at which devices reach this manager by mutual TLS: https://host[:port]
	Lifetime  time.Duration
	Authority Authority
	Registry  string // repository of states, "host/path"; "": none
	Margo     bool   // this manager serves desired state
	Trust     string // file of the first trust policy; "": none
	CAFile    string // of registries; "": none
	Login     *Login
	Harbor    *Harbor
}

// Authority is the authority that signs certificates of devices.
type Authority struct {
	Dir         string // has ca.crt, and ca.key unless Key says where that is; "": that of the manager's SVID and trust bundle does not sign
	TrustDomain string // of an authority that is created if Dir has none; "": none is created
	Manager     string // id of this manager in the trust domain
	Key         string // address of the authority's key in a PKCS#11 token or a key service; "": it is in Dir, as ca.key
	KeyPassword string // file with the PIN of the token; "": the address has it, or the environment
}

// Login is one credential for pulling that all devices get.
type Login struct {
	Host         string // of the registry; "": that of the repository of states
	Username     string
	PasswordFile string
}

// Harbor makes a robot account for each device.
type Harbor struct {
	URL          string
	Project      string
	Username     string // of a user that administers the project
	PasswordFile string
	CAFile       string // "": the system's authorities
}

// Defaults and limits of enroll.yaml.
const (
	DefaultLifetime = 30 * 24 * time.Hour
	minLifetime     = time.Minute // for tests; devices renew when a third is left
	maxLifetime     = 825 * 24 * time.Hour
	defaultManager  = "main"
)

// ParseSettings reads enroll.yaml. Relative paths in it start at its folder.
func ParseSettings(file string, data []byte) (*Settings, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	path := func(n *strict.Node, fallback string) string {
		p := filled(n, fallback)
		if p == "" || filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(filepath.Dir(file), p)
	}
	s := &Settings{URL: address(root.Need("url")), Lifetime: DefaultLifetime, Trust: path(root.Get("trust"), "")}
	if n := root.Get("lifetime"); n != nil {
		if s.Lifetime = n.Duration(); s.Lifetime < minLifetime || s.Lifetime > maxLifetime {
			n.Faultf("must be from %s to %s", minLifetime, maxLifetime)
		}
	}
	n := root.Get("authority")
	s.Authority = Authority{
		Dir: path(n.Get("dir"), "ca"), TrustDomain: filled(n.Get("trustDomain"), ""), Manager: filled(n.Get("manager"), defaultManager),
		Key: filled(n.Get("key"), ""), KeyPassword: path(n.Get("keyPasswordFile"), ""),
	}
	if s.Authority.KeyPassword != "" && s.Authority.Key == "" {
		n.Faultf("keyPasswordFile needs key")
	}
	n.Close()
	s.source(root.Need("source"))
	s.registry(root.Get("registry"), path)
	root.Close()
	return strict.Result(root, s)
}

// filled is a text that may be left out, but not be empty.
func filled(n *strict.Node, fallback string) string {
	if n == nil {
		return fallback
	}
	return n.Filled()
}

func address(n *strict.Node) string {
	u, err := url.Parse(n.Text())
	if n != nil && (err != nil || u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.Trim(u.Path, "/") != "") {
		n.HintFaultf("write it like https://fleet.example:8443", "not a web address with https and without a path")
	}
	return strings.TrimSuffix(n.Text(), "/")
}

// source reads where devices find their desired state.
func (s *Settings) source(n *strict.Node) {
	registry, margo := n.Get("registry"), n.Get("margo")
	if r := registry; r != nil {
		s.Registry = strings.TrimPrefix(r.Filled(), "oci://")
		if !fleet.IsRepository(s.Registry) {
			r.HintFaultf("write it like oci://harbor.example/plant/state, without tag or digest", "not a repository")
		}
	}
	if s.Margo = margo.Bool(); n != nil && registry == nil && !s.Margo {
		n.Faultf("needs registry, or margo: true, or both")
	}
	n.Close()
}

func (s *Settings) registry(n *strict.Node, path func(*strict.Node, string) string) {
	s.CAFile = path(n.Get("caFile"), "")
	if l := n.Get("login"); l != nil {
		s.Login = &Login{Username: l.Need("username").Filled(), PasswordFile: path(l.Need("passwordFile"), "")}
		if h := l.Get("host"); h != nil {
			if s.Login.Host = h.Filled(); strings.Contains(s.Login.Host, "/") || !fleet.IsRepository(s.Login.Host+"/x") {
				h.HintFaultf("write it like harbor.example or harbor.example:5000", "not the name of a registry")
			} else if source, _, _ := strings.Cut(s.Registry, "/"); source != "" && source != s.Login.Host {
				h.HintFaultf("leave host out: the one credential that devices get is for the registry of their states", "is %s, and source.registry is at %s", s.Login.Host, source)
			}
		}
		if s.Login.Host == "" && s.Registry == "" && s.Margo {
			l.HintFaultf("devices get components and images there", "without source.registry it needs host, the name of the registry")
		}
		l.Close()
	}
	if h := n.Get("harbor"); h != nil {
		at := h.Need("url")
		s.Harbor = &Harbor{
			URL: address(at), Project: h.Need("project").Filled(), Username: h.Need("username").Filled(),
			PasswordFile: path(h.Need("passwordFile"), ""), CAFile: path(h.Get("caFile"), ""),
		}
		if u, err := url.Parse(s.Harbor.URL); err == nil && u.Host != "" && strings.TrimSuffix(u.Host, ":443") != strings.TrimSuffix(s.Host(), ":443") {
			at.HintFaultf("the robot accounts that devices get are for the registry of their states", "is at %s, and source.registry is at %s", u.Host, s.Host())
		}
		h.Close()
	}
	if s.Login != nil && s.Harbor != nil {
		n.Faultf("login and harbor exclude each other")
	}
	n.Close()
}

// Host is the registry that a pull credential is for.
func (s *Settings) Host() string {
	if s.Login != nil && s.Login.Host != "" {
		return s.Login.Host
	}
	if s.Registry != "" {
		host, _, _ := strings.Cut(s.Registry, "/")
		return host
	}
	if s.Harbor != nil {
		if u, err := url.Parse(s.Harbor.URL); err == nil {
			return u.Host
		}
	}
	return ""
}
