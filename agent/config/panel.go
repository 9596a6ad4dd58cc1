package config

import (
	"net/netip"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Panel says where the page for the people at the machine is, and who may decide there. The zero value: there is none.
type Panel struct {
	Listen           string // "host:port"; "": nowhere
	CertFile         string // PEM; "": plain HTTP
	KeyFile          string // PEM
	PINFile          string // of the people who may decide; "": no decisions at the panel
	AnonymousViewers bool   // everybody who reaches the page may look
	Translations     string // file of texts in another language; "": English
	Hosts            []string
}

// hostName is a name that a browser may be given. It may be too long: a bound would take 160 KB.
var hostName = strict.Expression(`^[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?$`)

func (r reader) panel(n *strict.Node) (p Panel) {
	if n == nil {
		return p
	}
	l := n.Need("listen")
	p.Listen = l.Filled()
	at, err := netip.ParseAddrPort(p.Listen)
	if err != nil && l != nil {
		l.HintFaultf("write it like 127.0.0.1:8480 or 192.0.2.7:8480", "not an address and port to listen on")
	}
	p.CertFile, p.KeyFile = r.path(n.Get("certFile"), ""), r.path(n.Get("keyFile"), "")
	plain := n.Get("plainHTTP").Bool()
	switch {
	case (p.CertFile == "") != (p.KeyFile == ""):
		n.Faultf("certFile and keyFile belong together")
	case p.CertFile != "" && plain:
		n.Faultf("certFile and plainHTTP exclude each other")
	case err == nil && p.CertFile == "" && !plain && !at.Addr().IsLoopback():
		l.HintFaultf("add certFile and keyFile, or plainHTTP: true if nobody can listen on this network", "is not loopback: PINs would be sent in clear")
	}
	p.PINFile, p.AnonymousViewers = r.path(n.Get("pinFile"), ""), n.Get("anonymousViewers").Bool()
	if p.PINFile == "" && !p.AnonymousViewers {
		n.HintFaultf("name the file of those who may log in; or anonymousViewers: true for a page that only shows", "needs pinFile")
	}
	p.Translations = r.path(n.Get("translations"), "")
	for _, h := range n.Get("hosts").Items() {
		p.Hosts = append(p.Hosts, h.Matching(hostName, "a host name without a port"))
	}
	n.Close()
	return p
}
