// Package certsd reads containerd's certs.d folders: for each registry host a hosts.toml with the registry's own address,
// its mirrors in order, and the certificates to use with each.
//
// containerd's own reader is not used: it logs an unreadable hosts.toml and continues without it, so that a
// device would bypass its mirrors and contact a registry without its configured certificates; on loopback addresses it accepts
// every certificate, and it falls back from https to http.
package certsd

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	fileName    = "hosts.toml"
	defaultHost = "_default" // containerd's folder for every host without one of its own
	maxFile     = 1 << 20
	maxHosts    = 64
)

// Host is one address that serves a registry's content.
type Host struct {
	Scheme     string      // "https" or "http"
	Host       string      // host[:port]
	Path       string      // before the repository, "/v2" unless override_path says otherwise
	Pull       bool        // may be used for content by digest
	Resolve    bool        // may be used to resolve tags
	CAFiles    []string    // absolute
	Pairs      [][2]string // certificate and key file, absolute
	SkipVerify bool
	Header     http.Header
}

// Config is one hosts.toml.
type Config struct {
	Server  *Host  // nil: the registry under its own name
	Mirrors []Host // in the order of the file
}

// Load reads the configuration of a host in dir: the first existing one of its folders, finally _default, as in containerd. Without one:
// an empty Config.
func Load(dir, host string) (Config, error) {
	if dir == "" {
		return Config{}, nil
	}
	for _, name := range names(host) {
		folder := filepath.Join(dir, name)
		if info, err := os.Stat(folder); err == nil && info.IsDir() {
			return LoadFolder(folder)
		}
	}
	return Config{}, nil
}

// LoadFolder reads the folder of one host: its hosts.toml, or, if there is none or an empty one, the certificates in it with
// Docker's names, for the registry itself: *.crt are authorities, NAME.cert with NAME.key are clients.
func LoadFolder(folder string) (Config, error) {
	file := filepath.Join(folder, fileName)
	data, err := read(file)
	switch {
	case errors.Is(err, fault.ErrNotFound), err == nil && len(data) == 0:
		return certificates(folder)
	case err != nil:
		return Config{}, err
	}
	return Parse(file, data)
}

func certificates(folder string) (Config, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	var h Host
	for _, e := range entries {
		file := filepath.Join(folder, e.Name())
		switch name, kind := strings.TrimSuffix(file, filepath.Ext(file)), filepath.Ext(file); {
		case e.IsDir():
		case kind == ".crt":
			h.CAFiles = append(h.CAFiles, file)
		case kind == ".cert":
			pair := [2]string{file, file} // its key may be in it
			if _, err := os.Stat(name + ".key"); err == nil {
				pair[1] = name + ".key"
			}
			h.Pairs = append(h.Pairs, pair)
		}
	}
	if len(h.CAFiles)+len(h.Pairs) == 0 {
		return Config{}, nil
	}
	h.Pull, h.Resolve = true, true
	return Config{Server: &h}, nil
}

// Folders lists the folders of hosts in dir, which need not exist.
func Folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		folder := filepath.Join(dir, e.Name())
		if info, err := os.Stat(folder); err == nil && info.IsDir() { // it may be a link
			out = append(out, folder)
		}
	}
	return out, err
}

// names are the folders that containerd tries, in its order.
func names(host string) []string {
	var out []string
	if i := strings.LastIndexByte(host, ':'); i > 0 {
		out = append(out, host[:i]+"_"+host[i+1:]+"_")
	}
	return append(out, host, defaultHost)
}

func read(file string) ([]byte, error) {
	data, err := bounded.File(os.Open, file, maxFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fault.ErrNotFound
	case err != nil && !errors.Is(err, fault.ErrTooLarge):
		return nil, fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	return data, err
}

type document struct {
	entry
	Server string           `toml:"server"`
	Host   map[string]entry `toml:"host"`
}

type entry struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`     // string or strings
	Client       any            `toml:"client"` // string, strings, or pairs of strings
	SkipVerify   bool           `toml:"skip_verify"`
	OverridePath bool           `toml:"override_path"`
	Header       map[string]any `toml:"header"`
	DialTimeout  string         `toml:"dial_timeout"` // read and not used: the client has its own
}

// Parse reads a hosts.toml. file is its path: certificate paths are relative to its folder.
func Parse(file string, data []byte) (Config, error) {
	var d document
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Config{}, fmt.Errorf("%s:%s: %w", file, position(err), fault.ErrInvalid)
	}
	if len(d.Host) > maxHosts {
		return Config{}, fmt.Errorf("%s: more than %d hosts: %w", file, maxHosts, fault.ErrTooLarge)
	}
	folder := filepath.Dir(file)
	var c Config
	// Keys above the tables describe the server; without a server line that is the registry itself, as a Host
	// without address.
	if d.Server != "" || d.CA != nil || d.Client != nil || d.SkipVerify || len(d.entry.Header) > 0 {
		h, err := d.entry.host(folder, d.Server)
		if err != nil {
			return Config{}, fmt.Errorf("%s: server: %w", file, err)
		}
		c.Server = &h
	}
	for _, address := range order(data, d.Host) {
		if address == "" {
			return Config{}, fmt.Errorf("%s: a host without an address: %w", file, fault.ErrInvalid)
		}
		h, err := d.Host[address].host(folder, address)
		if err != nil {
			// Without the part before "@", which may contain a password.
			return Config{}, fmt.Errorf("%s: host %q: %w", file, address[strings.LastIndexByte(address, '@')+1:], err)
		}
		if h.Pull || h.Resolve {
			c.Mirrors = append(c.Mirrors, h)
		}
	}
	return c, nil
}

func position(err error) string {
	var (
		decode *toml.DecodeError
		strict *toml.StrictMissingError
	)
	switch {
	case errors.As(err, &strict) && len(strict.Errors) > 0:
		row, col := strict.Errors[0].Position()
		return fmt.Sprintf("%d:%d: unknown key %s", row, col, strings.Join(strict.Errors[0].Key(), "."))
	case errors.As(err, &decode):
		row, col := decode.Position()
		return fmt.Sprintf("%d:%d: %s", row, col, decode.Error())
	}
	return " " + err.Error()
}

// order lists the host tables in the order of the file, which a map does not keep; tables that the parser's tree does not
// contain follow by name.
func order(data []byte, hosts map[string]entry) []string {
	var out []string
	add := func(name string) {
		if _, ok := hosts[name]; ok && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind != unstable.Table && e.Kind != unstable.KeyValue {
			continue
		}
		var key []string
		for it := e.Key(); it.Next(); {
			key = append(key, string(it.Node().Data))
		}
		if len(key) >= 2 && key[0] == "host" {
			add(key[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		add(name)
	}
	return out
}

func (e entry) host(folder, address string) (Host, error) {
	h := Host{SkipVerify: e.SkipVerify, Pull: len(e.Capabilities) == 0, Resolve: len(e.Capabilities) == 0}
	if err := h.setAddress(address, e.OverridePath); err != nil {
		return Host{}, err
	}
	for _, c := range e.Capabilities {
		switch strings.ToLower(c) {
		case "pull":
			h.Pull = true
		case "resolve":
			h.Resolve = true
		case "push", "referrers":
		default:
			return Host{}, fmt.Errorf("unknown capability %q: %w", c, fault.ErrInvalid)
		}
	}
	var err error
	if h.CAFiles, err = files(folder, e.CA); err != nil {
		return Host{}, fmt.Errorf("ca: %w", err)
	}
	if h.Pairs, err = pairs(folder, e.Client); err != nil {
		return Host{}, fmt.Errorf("client: %w", err)
	}
	for name, value := range e.Header {
		values, err := texts(value)
		if err != nil {
			return Host{}, fmt.Errorf("header %q: %w", name, err)
		}
		for _, v := range values {
			if strings.ContainsAny(name+v, "\r\n\x00") || name == "" {
				return Host{}, fmt.Errorf("header %q: not a header: %w", name, fault.ErrInvalid)
			}
			if h.Header == nil {
				h.Header = http.Header{}
			}
			h.Header.Add(name, v)
		}
	}
	return h, nil
}

// Address reads the address of a mirror in the form of hosts.toml; the mirror may be used for everything.
func Address(s string) (Host, error) {
	h := Host{Pull: true, Resolve: true}
	if s == "" {
		return h, fmt.Errorf("no address: %w", fault.ErrInvalid)
	}
	return h, h.setAddress(s, false)
}

func (h *Host) setAddress(address string, override bool) error {
	if address == "" {
		return nil
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("not an address like https://mirror.example.com: %w", fault.ErrInvalid)
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("scheme %q is neither https nor http: %w", u.Scheme, fault.ErrInvalid)
	}
	h.Scheme, h.Host, h.Path = u.Scheme, u.Host, strings.TrimSuffix(u.Path, "/")
	if !override && !strings.HasSuffix(h.Path, "/v2") {
		h.Path += "/v2"
	}
	return nil
}

func texts(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var out []string
		for _, one := range v {
			s, ok := one.(string)
			if !ok {
				return nil, fmt.Errorf("not a list of texts: %w", fault.ErrInvalid)
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, fmt.Errorf("neither a text nor a list of texts: %w", fault.ErrInvalid)
}

func files(folder string, v any) ([]string, error) {
	list, err := texts(v)
	for i, f := range list {
		list[i] = beside(folder, f)
	}
	return list, err
}

// pairs reads "both.pem", ["a.pem", "b.pem"] (each with its key inside) or [["cert.pem", "key.pem"], …].
func pairs(folder string, v any) ([][2]string, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var out [][2]string
	for _, one := range list {
		names, err := texts(one)
		if err != nil {
			return nil, err
		}
		switch {
		case len(names) == 0 && one == nil:
		case len(names) == 1, len(names) == 2 && names[1] == "":
			out = append(out, [2]string{beside(folder, names[0]), beside(folder, names[0])})
		case len(names) == 2:
			out = append(out, [2]string{beside(folder, names[0]), beside(folder, names[1])})
		default:
			return nil, fmt.Errorf("not pairs of certificate and key: %w", fault.ErrInvalid)
		}
	}
	return out, nil
}

func beside(folder, f string) string {
	if filepath.IsAbs(f) {
		return f
	}
	return filepath.Join(folder, f)
}
