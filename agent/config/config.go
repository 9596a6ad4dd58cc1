// Package config reads agent.yaml: what this device is, where its desired state comes from, and where things are kept.
//
// It is pure: bytes in, values out, every fault with its line. Paths are not opened and nothing is dialled; relative
// paths are relative to the file, and resolved by the caller's base folder.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/signing/token"
)

// Config is one agent.yaml with every default filled in.
type Config struct {
	File    string // the agent.yaml itself
	Device  artifacts.DeviceID
	State   string // "host/path": repository of device states, without scheme; "": Source alone says what the device is to run
	Source  Source
	Trust   string // trust.yaml
	DataDir string // survives a reboot
	RunDir  string // does not need to

	// TrustInterval is how often the repository that the trust policy names is asked for its next version, without a reason.
	TrustInterval time.Duration // at least 1 s

	Containerd   Containerd
	Poll         Poll
	Changes      Changes
	Downtime     schedule.Windows // in which it is no error that something cannot be reached; the zero value: never
	Fleet        Fleet
	Enrollment   Enrollment
	Report       Report
	Registry     Registry
	Capabilities Capabilities
	Network      Network
	Logs         Logs
	Metrics      Metrics
	OTLP         OTLP
	Traces       Traces
	Images       Images
	Runtime      Runtime
	Approvals    Approvals
	Panel        Panel

	AllowNoSeccomp bool // run containers without a seccomp profile where the runtime has none; shown in every status
	RequirePins    bool // refuse components and images that are named by a tag only

	root *strict.Node
}

// At names a key as faults of the file do, for what is wrong elsewhere: "agent.yaml:9:3: registry.caFile". A key that the file does not have has no
// line.
func (c *Config) At(key string) string {
	n := c.root
	for part := range strings.SplitSeq(key, ".") {
		n = n.Get(part)
	}
	if n == nil {
		return c.File + ": " + key
	}
	return fmt.Sprintf("%s:%d:%d: %s", c.File, n.Line, n.Column, key)
}

// Containerd says where the daemon is.
type Containerd struct {
	Address     string // unix socket
	Namespace   string
	Snapshotter string
}

// Runtime is what containers of this device may be beyond the default. The zero value allows nothing.
type Runtime struct {
	AllowPrivileged bool              // told in every status
	Allowed         map[string]string // names that services may ask for: containerd's name of a runtime, or a path in place of runc
	CDIDirs         []string          // of device specifications; nil: /etc/cdi and /var/run/cdi
}

// Report says how the device's current state gets into a registry, signed by the device. The zero value: it does not.
type Report struct {
	Registry   bool
	Repository string        // "host/path" without scheme; the tag is the device's, with ".current"
	KeyFile    string        // the device's private key; its public half is beside it, with ".pub" for ".key"
	TPM        string        // device file or socket of the TPM that has the private key instead; "": none
	Token      string        // address of the private key in a PKCS#11 token, where it is instead; "": none
	AuthFile   string        // credentials that may push; "": those of Registry
	Interval   time.Duration // in which it is pushed at least; at least 1 s
}

// Registry says how registries are reached, for artifacts and images alike.
type Registry struct {
	AuthFile  string // "": as Docker and podman look for it
	CAFile    string
	CertFile  string
	KeyFile   string
	CertsDir  string        // hosts.toml folders
	PlainHTTP []string      // hosts that are spoken to without TLS
	Timeout   time.Duration // how long an answer may bring next to nothing; at least 1 s
}

// Capabilities are what the device cannot find out about itself, or is to say in place of what it finds; "": what it finds.
type Capabilities struct {
	Vendor       string
	ModelNumber  string
	SerialNumber string
	Labels       map[string]any
}

// Network is the pool that project networks are cut from, the name that keeps two agents of one machine apart, and the
// networks of the site that applications may join as external ones.
type Network struct {
	Pool   netip.Prefix
	Table  string // nftables table and prefix of interfaces
	CNI    CNI
	Shared []Shared
}

// CNI says where the site keeps its own networks, as container runtimes read them.
type CNI struct {
	ConfDir string // of .conflist files
	BinDir  string // of plugins
}

// Shared is a bridge of the device that applications share.
type Shared struct {
	Name   string
	Subnet netip.Prefix // zero: chosen from the pool
}

// Logs bound what containers may write.
type Logs struct {
	MaxSize  int64 // bytes of one file
	MaxFiles int   // rotated files kept beside the current one
	Budget   int64 // bytes of all files of the device
}

// OTLP says where containers send what they measure. The zero value: their environment does not say.
type OTLP struct {
	Endpoint     string // URL of OTLP over HTTP
	GRPCEndpoint string // URL of OTLP over gRPC; "": there is none
	Protocol     string // that containers are to use: http/protobuf, http/json or grpc
	CAFile       string // authorities of the collector; "": containers use their own
}

// Traces say where the agent sends traces of itself. The zero value: the environment of the agent says it, or it sends none.
type Traces struct {
	Endpoint string // URL of OTLP over HTTP, without /v1/traces
	CAFile   string // authorities of the collector; "": the system's
}

// Images bound what pulls may fill of a disk. Without either field the driver's default holds.
type Images struct {
	MinFree        int64 // bytes that stay free; 0: MinFreePercent counts
	MinFreePercent int   // of the file system; 0: MinFree counts
}

// Metrics say where Prometheus may ask.
type Metrics struct {
	Listen string // "host:port"; "": nowhere
}

const (
	DefaultPath     = "/etc/longshore/agent.yaml"
	DefaultDataDir  = "/var/lib/longshore"
	DefaultRunDir   = "/run/longshore"
	DefaultInterval = time.Minute
	DefaultJitter   = 0.2
	MinInterval     = time.Second

	DefaultTrustInterval = time.Hour

	DefaultReportInterval = 5 * time.Minute
	DefaultFullInterval   = 24 * time.Hour
	MinFullInterval       = time.Minute

	DefaultEnrollmentInterval = 5 * time.Minute

	DefaultPublishInterval = time.Hour // each push leaves a manifest in the registry

	DefaultKeyFile = "device.key"  // beside agent.yaml
	DefaultTPM     = "/dev/tpmrm0" // the kernel's resource manager: several programs can use the TPM at once

	DefaultTimeout = time.Minute
	MinTimeout     = time.Second
)

// maxReportInterval is a week: the longest that a fleet endpoint believes.
const maxReportInterval = 7 * 24 * time.Hour

// Parse reads an agent.yaml. file is its path: it names faults, and relative paths in the document start at its folder. With an error about keys
// or values it also returns what it could read, only to look for more faults with.
func Parse(file string, data []byte) (*Config, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	r := reader{base: filepath.Dir(file)}
	c := &Config{
		root:    root,
		File:    file,
		Device:  r.device(root.Need("device")),
		Source:  r.source(root.Get("source")),
		DataDir: r.path(root.Get("dataDir"), DefaultDataDir),
		RunDir:  r.path(root.Get("runDir"), DefaultRunDir),
	}
	state := root.Get("state")
	if c.Source.Manager.URL == "" && root.Get("source") == nil {
		state = root.Need("state")
	}
	c.State = r.repository(state)
	if strings.Contains(c.RunDir, ",") {
		root.Get("runDir").Faultf("must not contain a comma: runc takes no such path for a network namespace")
	}
	r.trust(root.Get("trust"), c)
	c.AllowNoSeccomp = root.Get("allowNoSeccomp").Bool()
	c.RequirePins = root.Get("requirePins").Bool()
	r.sections(root, c)
	root.Close(isExtension)
	return c, root.Err()
}

func isExtension(key string) bool { return strings.HasPrefix(key, "x-") }

type reader struct{ base string }

// trust takes the path alone, or a mapping of file and interval.
func (r reader) trust(n *strict.Node, c *Config) {
	c.Trust, c.TrustInterval = filepath.Join(r.base, "trust.yaml"), DefaultTrustInterval
	if n.Kind() == strict.String {
		c.Trust = r.path(n, "")
		return
	}
	c.Trust = r.path(n.Get("file"), c.Trust)
	c.TrustInterval = atLeast(n.Get("interval"), MinInterval, c.TrustInterval)
	n.Close()
}

func (r reader) sections(root *strict.Node, c *Config) {
	n := root.Get("containerd")
	c.Containerd = Containerd{
		Address:     r.path(n.Get("address"), "/run/containerd/containerd.sock"),
		Namespace:   text(n.Get("namespace"), "longshore"),
		Snapshotter: text(n.Get("snapshotter"), "overlayfs"),
	}
	n.Close()

	c.times(root)
	c.Fleet = r.fleet(root.Get("fleet"), c.Source)

	c.Enrollment = enrollment(root.Get("enrollment"), c.Fleet)
	c.Report = r.report(root.Get("report"), c)
	c.Registry = r.registry(root.Get("registry"))

	n = root.Get("capabilities")
	c.Capabilities = Capabilities{
		Vendor:       text(n.Get("vendor"), ""),
		ModelNumber:  text(n.Get("modelNumber"), ""),
		SerialNumber: text(n.Get("serialNumber"), ""),
	}
	if l := n.Get("labels"); l != nil {
		c.Capabilities.Labels, _ = l.Value().(map[string]any)
		if l.Kind() != strict.Object {
			l.Faultf("must be a mapping of label names to values")
		}
	}
	n.Close()

	n = root.Get("network")
	c.Network = Network{Pool: netip.MustParsePrefix("10.210.0.0/16"), Table: text(n.Get("table"), "longshore")}
	if p := n.Get("pool"); p != nil {
		c.Network.Pool = cmp.Or(subnet(p, "10.210.0.0/16", 20), c.Network.Pool)
	}
	c.Network.CNI = CNI{
		ConfDir: r.path(n.Get("cni").Get("confDir"), "/etc/cni/net.d"),
		BinDir:  r.path(n.Get("cni").Get("binDir"), "/opt/cni/bin"),
	}
	n.Get("cni").Close()
	c.Network.Shared = shared(n.Get("shared"))
	n.Close()

	n = root.Get("images")
	c.Images.MinFree, c.Images.MinFreePercent = share(n.Get("minFree"))
	n.Close()

	c.Runtime = r.runtime(root.Get("runtime"))
	c.Approvals = r.approvals(root.Get("approvals"))
	c.Panel = r.panel(root.Get("panel"))

	n = root.Get("logs")
	c.Logs = Logs{MaxSize: size(n.Get("maxSize"), 10<<20), MaxFiles: 3, Budget: size(n.Get("budget"), 1<<30)}
	if f := n.Get("maxFiles"); f != nil {
		if n := f.Uint64(); n > 100 {
			f.Faultf("must be at most 100")
		} else {
			c.Logs.MaxFiles = int(n)
		}
	}
	n.Close()

	c.Metrics = metrics(root.Get("metrics"))
	n = root.Get("observability")
	c.OTLP, c.Traces = r.otlp(n.Get("otlp")), r.traces(n.Get("traces"))
	n.Close()
}

// KeyPlaces says what [KeyPlace] reads.
const KeyPlaces = "write file, tpm, tpm:" + DefaultTPM + ", or the address of a key in a token: pkcs11:token=…;object=…?module-path=…&pin-source=…"

// KeyPlace reads where the device's key is: a TPM, a PKCS#11 token, or with neither a file. Its errors have no PIN.
func KeyPlace(text string) (tpm, address string, err error) {
	kind, rest, named := strings.Cut(text, ":")
	switch {
	case text == "file":
		return "", "", nil
	case kind == "tpm" && !named:
		return DefaultTPM, "", nil
	case kind == "tpm" && filepath.IsAbs(rest):
		return rest, "", nil
	case kind == "pkcs11" && named:
		_, err := token.Parse(text)
		return "", text, err
	}
	return "", "", errors.New("not a place of a key")
}

func (r reader) report(n *strict.Node, c *Config) Report {
	out := Report{
		Registry: n.Get("registry").Bool(), Repository: c.State, Interval: DefaultPublishInterval,
		KeyFile: r.path(n.Get("keyFile"), filepath.Join(r.base, DefaultKeyFile)), AuthFile: r.path(n.Get("authFile"), ""),
	}
	if at := n.Get("repository"); at != nil {
		out.Repository = r.repository(at)
	}
	if out.Registry && out.Repository == "" && c.Source.Manager.URL != "" {
		n.Faultf("needs repository: there is no state repository that could be the default")
	}
	if k := n.Get("key"); k != nil {
		var err error
		if out.TPM, out.Token, err = KeyPlace(k.Filled()); err != nil {
			k.HintFaultf(KeyPlaces, "%v", err)
		} else if out.TPM+out.Token != "" && n.Get("keyFile") != nil {
			kind, _, _ := strings.Cut(k.Filled(), ":") // an address may have a PIN
			k.Faultf("%s and keyFile exclude each other", kind)
		}
	}
	out.Interval = atLeast(n.Get("interval"), MinInterval, out.Interval)
	n.Close()
	return out
}

func (r reader) registry(n *strict.Node) Registry {
	c := Registry{
		AuthFile:  r.path(n.Get("authFile"), ""),
		CAFile:    r.path(n.Get("caFile"), ""),
		CertFile:  r.path(n.Get("certFile"), ""),
		KeyFile:   r.path(n.Get("keyFile"), ""),
		CertsDir:  r.path(n.Get("certsDir"), "/etc/containerd/certs.d"),
		PlainHTTP: n.Get("plainHTTP").Strings(),
		Timeout:   atLeast(n.Get("timeout"), MinTimeout, DefaultTimeout),
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		n.Faultf("certFile and keyFile belong together")
	}
	n.Close()
	return c
}

func (r reader) runtime(n *strict.Node) (c Runtime) {
	c.AllowPrivileged = n.Get("allowPrivileged").Bool()
	if a := n.Get("allowed"); a != nil {
		c.Allowed = map[string]string{}
		for _, m := range a.Members() {
			c.Allowed[m.Key()] = m.Filled()
		}
		if a.Kind() != strict.Object {
			a.Faultf("must be a mapping of names to runtimes")
		}
	}
	for _, d := range n.Get("cdiDirs").Items() {
		c.CDIDirs = append(c.CDIDirs, r.path(d, ""))
	}
	n.Close()
	return c
}

// sharedName is what a Compose file can call an external network, and a hosts file can hold.
var sharedName = strict.Expression(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,62}$`)

// shared reads the device's own networks.
func shared(n *strict.Node) []Shared {
	var out []Shared
	for _, item := range n.Items() {
		s := Shared{Name: item.Need("name").Matching(sharedName, "a name of letters, digits, dots, dashes and underscores")}
		if slices.ContainsFunc(out, func(o Shared) bool { return o.Name == s.Name }) {
			item.Faultf("%q is there twice", s.Name)
		}
		if sub := item.Get("subnet"); sub != nil {
			s.Subnet = subnet(sub, "172.30.0.0/24", 29)
			for _, o := range out {
				if o.Subnet.IsValid() && o.Subnet.Overlaps(s.Subnet) {
					sub.Faultf("overlaps %s of %q", o.Subnet, o.Name)
				}
			}
		}
		item.Close()
		out = append(out, s)
	}
	return out
}

// subnet reads a range of IPv4 addresses; zero: it is none. longest is the length of the longest prefix.
func subnet(n *strict.Node, example string, longest int) netip.Prefix {
	p, err := netip.ParsePrefix(n.Text())
	switch {
	case err != nil:
		n.HintFaultf("write it like "+example, "not an address range")
	case !p.Addr().Is4() || p.Bits() > longest || p.Bits() < 8:
		n.Faultf("must be an IPv4 range between /8 and /%d", longest)
	default:
		return p.Masked()
	}
	return netip.Prefix{}
}

func metrics(n *strict.Node) (m Metrics) {
	if l := n.Get("listen"); l != nil {
		m.Listen = l.Filled()
		if _, err := netip.ParseAddrPort(m.Listen); err != nil {
			l.HintFaultf("write it like 127.0.0.1:9464 or [::]:9464; whoever reaches it may read it", "not an address and port to listen on")
		}
	}
	n.Close()
	return m
}

func (r reader) device(n *strict.Node) artifacts.DeviceID {
	s := n.Text()
	if n == nil {
		return ""
	}
	id, err := artifacts.ParseDeviceID(s)
	if err != nil {
		n.Faultf("%v", err)
	}
	return id
}

// repository takes "oci://host/path" or "host/path" and refuses a tag: the device's name makes the tag.
func (r reader) repository(n *strict.Node) string {
	s := strings.TrimPrefix(n.Text(), "oci://")
	if n == nil {
		return ""
	}
	host, path, ok := strings.Cut(s, "/")
	switch {
	case !ok || host == "" || path == "" || strings.Contains(s, "://"):
		n.HintFaultf("write it like oci://harbor.example/plant/state", "not a repository")
	case strings.ContainsAny(path, ":@"):
		n.HintFaultf("leave the tag out: the device's id is the tag", "must be a repository without tag or digest")
	}
	return s
}

func (r reader) path(n *strict.Node, fallback string) string {
	if n == nil {
		return fallback
	}
	p := n.Filled()
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(r.base, p)
}

func text(n *strict.Node, fallback string) string {
	if n == nil {
		return fallback
	}
	return n.Filled()
}

// atLeast reads a duration that must not be shorter than least; without one it is fallback.
func atLeast(n *strict.Node, least, fallback time.Duration) time.Duration {
	if n == nil {
		return fallback
	}
	d := n.Duration()
	if d < least {
		n.Faultf("must be at least %s", least)
	}
	return d
}
