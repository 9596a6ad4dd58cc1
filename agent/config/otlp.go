package config

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	otlpHTTP = "http/protobuf" // Margo's default
	otlpGRPC = "grpc"
)

// otlp reads where containers send what they measure.
func (r reader) otlp(n *strict.Node) OTLP {
	if n == nil {
		return OTLP{}
	}
	o := OTLP{Endpoint: collector(n.Need("endpoint")), GRPCEndpoint: collector(n.Get("grpcEndpoint")), Protocol: otlpHTTP, CAFile: r.path(n.Get("caFile"), "")}
	if p := n.Get("protocol"); p != nil {
		if o.Protocol = p.OneOf(otlpHTTP, "http/json", otlpGRPC); o.Protocol == otlpGRPC && o.GRPCEndpoint == "" {
			p.Faultf("grpc needs grpcEndpoint")
		}
	}
	n.Close()
	return o
}

// traces reads where the agent sends traces of itself.
func (r reader) traces(n *strict.Node) Traces {
	if n == nil {
		return Traces{}
	}
	t := Traces{CAFile: r.path(n.Get("caFile"), "")}
	if at := n.Need("endpoint"); at != nil && address(at) != nil {
		t.Endpoint = at.Text()
	}
	n.Close()
	return t
}

// collector reads the URL of a collector as containers reach it.
func collector(n *strict.Node) string {
	if n == nil {
		return ""
	}
	if u := address(n); u != nil && isLoopback(u.Hostname()) {
		n.HintFaultf("name an address of the device", "a container that looks for it there finds only itself")
	}
	return n.Text()
}

// address checks the URL of a collector; nil: it is none.
func address(n *strict.Node) *url.URL {
	u, err := url.Parse(n.Filled())
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		n.HintFaultf("write it like http://192.0.2.7:4318", "not the address of a collector")
		return nil
	}
	return u
}

func isLoopback(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}
