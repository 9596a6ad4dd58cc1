package config

import (
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Source is where desired state comes from. The zero value is the repository of [Config.State].
//
// With a manager and a repository the manager says which state is the current one, and the repository has that state with its
// signatures. With a manager alone nothing is signed: the trust policy must accept that, by the manager's name.
type Source struct {
	Manager Endpoint // https:// only
}

// Endpoint is a server of the Margo management API, and how the device and the server authenticate each other.
type Endpoint struct {
	URL       string // "": there is none
	TokenFile string // "": no bearer token
	CAFile    string // "": the system's roots

	// Mutual TLS with SPIFFE ids, instead of TokenFile and CAFile: CertFile and TrustBundle, or none. The manager that is expected is the one that
	// the certificate names.
	CertFile    string // the device's X.509-SVID with its intermediates, PEM
	KeyFile     string // its private key, PEM; "": it is the device's own key, as Report says where that is
	TrustBundle string // of the trust domain: SPIFFE's JSON, or PEM
	WorkloadAPI string // unix:// address of the SPIFFE Workload API that has all three in place of files; "": it is not used
}

// Fleet is the endpoint that status goes to: Source.Manager unless the file names another. An empty URL means that nothing is
// reported.
type Fleet struct {
	Endpoint
	Interval time.Duration // in which the endpoint hears the device at least; whole seconds, at least 1 s
	Full     time.Duration // in which it gets everything at least, changed or not; at least 1 min
}

// Enrollment keeps the identity that a manager gave to this device: with the credentials of mutual TLS in [Config.Fleet]. The zero
// value: the device was not enrolled.
type Enrollment struct {
	Interval  time.Duration // between two questions whether the device is still enrolled; at least 1 s
	AllowWipe bool          // the manager may ask the device to delete all that it has
}

// source reads where desired state comes from, beside the repository of states.
func (r reader) source(n *strict.Node) (s Source) {
	if n == nil {
		return s
	}
	u := n.Need("margo")
	s.Manager = r.endpoint(n, u)
	switch {
	case s.Manager.URL == "":
	case !strings.HasPrefix(s.Manager.URL, "https://"):
		u.Faultf("must begin with https://")
	case s.Manager.CertFile == "" && s.Manager.WorkloadAPI == "" && s.Manager.TokenFile == "":
		n.HintFaultf("add certFile, keyFile and trustBundle, or workloadAPI, or tokenFile", "has no credentials for the manager")
	}
	n.Close()
	return s
}

func (r reader) fleet(n *strict.Node, s Source) Fleet {
	f := Fleet{Endpoint: r.endpoint(n, n.Get("url")), Interval: DefaultReportInterval, Full: DefaultFullInterval}
	if i := n.Get("fullInterval"); i != nil {
		if f.Full = i.Duration(); f.Full < MinFullInterval || f.Full > maxReportInterval {
			i.Faultf("must be from %s to %s", MinFullInterval, maxReportInterval)
		}
	}
	if i := n.Get("interval"); i != nil {
		if f.Interval = i.Duration(); f.Interval < MinInterval || f.Interval > maxReportInterval || f.Interval%time.Second != 0 {
			i.Faultf("must be whole seconds, from %s to %s", MinInterval, maxReportInterval)
		}
	}
	if f.URL == "" && s.Manager.URL != "" {
		if f.Endpoint != (Endpoint{}) {
			n.HintFaultf("remove them, or name the endpoint in fleet.url", "has credentials but no url: reports go to source.margo with the credentials there")
		}
		f.Endpoint = s.Manager
	}
	n.Close()
	return f
}

// endpoint reads the credentials for the endpoint whose URL is u.
func (r reader) endpoint(n, u *strict.Node) (e Endpoint) {
	if u != nil {
		e.URL = strings.TrimSuffix(u.Filled(), "/")
		if p, err := url.Parse(e.URL); err != nil || p.Host == "" || p.Scheme != "https" && p.Scheme != "http" || p.RawQuery != "" || p.Fragment != "" || p.User != nil {
			u.HintFaultf("write it like https://fleet.example", "not a web address")
		}
	}
	e.TokenFile, e.CAFile = r.path(n.Get("tokenFile"), ""), r.path(n.Get("caFile"), "")
	e.CertFile, e.KeyFile, e.TrustBundle = r.path(n.Get("certFile"), ""), r.path(n.Get("keyFile"), ""), r.path(n.Get("trustBundle"), "")
	if w := n.Get("workloadAPI"); w != nil {
		e.WorkloadAPI = w.Filled()
		if path, ok := strings.CutPrefix(e.WorkloadAPI, "unix://"); !ok || !filepath.IsAbs(path) || strings.ContainsAny(path, "?#%") {
			w.HintFaultf("write it like unix:///run/spire/agent.sock", "not the address of a Unix socket")
		}
	}
	switch {
	case e.WorkloadAPI != "" && e.CertFile+e.KeyFile+e.TrustBundle+e.TokenFile+e.CAFile != "":
		n.Faultf("workloadAPI excludes certFile, keyFile, trustBundle, tokenFile and caFile: the certificate and the trust bundle come from there")
	case e.WorkloadAPI != "" && u != nil && !strings.HasPrefix(e.URL, "https://"):
		u.Faultf("must begin with https:// where workloadAPI is given")
	case e.CertFile+e.KeyFile+e.TrustBundle == "":
	case e.CertFile == "" || e.TrustBundle == "":
		n.Faultf("certFile and trustBundle belong together, with keyFile where the key is not the device's own")
	case e.TokenFile != "" || e.CAFile != "":
		n.Faultf("certFile excludes tokenFile and caFile: with a certificate the trust bundle decides who the endpoint is")
	case u != nil && !strings.HasPrefix(e.URL, "https://"):
		u.Faultf("must begin with https:// where certFile is given")
	}
	return e
}

func enrollment(n *strict.Node, f Fleet) (e Enrollment) {
	if n == nil {
		return e
	}
	e = Enrollment{Interval: atLeast(n.Get("interval"), MinInterval, DefaultEnrollmentInterval), AllowWipe: n.Get("allowWipe").Bool()}
	if f.CertFile == "" {
		n.HintFaultf("longshore-agent enroll writes them", "needs certFile and trustBundle of the manager, in fleet or source")
	}
	n.Close()
	return e
}
