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
func (r reader) otlp(n *strict.Node) (o OTLP) {
	defer n.Close()
	n = n.Get("otlp")
	if n == nil {
		return o
	}
	o = OTLP{Endpoint: collector(n.Need("endpoint")), GRPCEndpoint: collector(n.Get("grpcEndpoint")), Protocol: otlpHTTP, CAFile: r.path(n.Get("caFile"), "")}
	if p := n.Get("protocol"); p != nil {
		if o.Protocol = p.OneOf(otlpHTTP, "http/json", otlpGRPC); o.Protocol == otlpGRPC && o.GRPCEndpoint == "" {
			p.Faultf("grpc needs grpcEndpoint")
		}
	}
	n.Close()
	return o
}

// collector reads the URL of a collector as containers reach it.
func collector(n *strict.Node) string {
	if n == nil {
		return ""
	}
	s := n.Filled()
	u, err := url.Parse(s)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https", u.RawQuery != "", u.Fragment != "", u.User != nil:
		n.HintFaultf("write it like http://192.0.2.7:4318", "not the address of a collector")
	case isLoopback(u.Hostname()):
		n.HintFaultf("name an address of the device", "a container that looks for it there finds only itself")
	}
	return s
}

func isLoopback(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}
