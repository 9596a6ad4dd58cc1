package attack

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"

	"github.com/longshore-dev/longshore/testenv"
)

// Victims are the clients on a device: the agent itself, and what pulls its images. Whoever publishes is another client,
// and is served honestly by rules for victims.
const Victims = `^(longshore-agent|containerd)/`

// Proxy is a registry that an attacker owns: what it serves is another registry's content, as far as its rules let it.
// It keeps what it was asked, with headers: Faults.Requests.
type Proxy struct {
	Host   string // "127.0.0.1:port"
	Faults *testenv.Faults

	server *httptest.Server
	client *http.Client
}

// Start puts a proxy before a registry, on a port of its own, without TLS. The caller closes it.
func Start(behind *testenv.RegistryServer) *Proxy {
	p := &Proxy{Faults: &testenv.Faults{}, client: behind.Client()}
	scheme, host, _ := strings.Cut(behind.URL, "://")
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		// The registry gets the proxy's name, so that addresses in its answers lead here again.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = scheme, host, p.Host
			if behind.Username != "" && r.In.Header.Get("Authorization") == "" {
				r.Out.SetBasicAuth(behind.Username, behind.Password) // the attacker's own, for every client
			}
		},
		Transport: p.client.Transport, ErrorLog: quiet, FlushInterval: -1,
	}
	p.server = httptest.NewUnstartedServer(p.Faults.Wrap(forward))
	p.server.Config.ErrorLog = quiet
	p.Host = p.server.Listener.Addr().String()
	p.server.Start()
	return p
}

// Play adds rules that hold for victims only.
func (p *Proxy) Play(rules ...testenv.Rule) {
	for _, r := range rules {
		if r.Agent == "" {
			r.Agent = Victims
		}
		p.Faults.Add(r)
	}
}

// Rest makes the proxy honest again.
func (p *Proxy) Rest() { p.Faults.Clear() }

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.Faults.Clear()
	p.server.CloseClientConnections()
	p.server.Close()
	p.client.CloseIdleConnections()
}
