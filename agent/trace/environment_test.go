package trace_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/trace"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestRead(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	plain := trace.Collector{URL: "http://c:4318/v1/traces", Timeout: 5 * time.Second, Delay: 5 * time.Second, Ratio: 1}
	but := func(edit func(*trace.Collector)) *trace.Collector { c := plain; edit(&c); return &c }
	for name, tc := range map[string]struct {
		env  env
		want *trace.Collector // nil: off
	}{
		"nothing":         {env{}, nil},
		"only a name":     {env{"OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "%"}, nil},
		"an endpoint":     {env{endpoint: "http://c:4318"}, &plain},
		"with a slash":    {env{endpoint: "http://c:4318/"}, &plain},
		"with a path":     {env{endpoint: "https://c/otlp"}, but(func(c *trace.Collector) { c.URL = "https://c/otlp/v1/traces" })},
		"of traces":       {env{endpoint: "grpc://no", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/x"}, but(func(c *trace.Collector) { c.URL = "http://c:1/x" })},
		"disabled":        {env{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, nil},
		"not disabled":    {env{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "1"}, &plain},
		"no exporter":     {env{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, nil},
		"the exporter":    {env{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, &plain},
		"protocol":        {env{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, &plain},
		"always off":      {env{endpoint: "http://c:4318", "OTEL_TRACES_SAMPLER": "always_off"}, but(func(c *trace.Collector) { c.Ratio = 0 })},
		"parent":          {env{endpoint: "http://c:4318", "OTEL_TRACES_SAMPLER": "parentbased_always_on"}, &plain},
		"ratio":           {env{endpoint: "http://c:4318", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, but(func(c *trace.Collector) { c.Ratio = .25 })},
		"a short timeout": {env{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "100"}, but(func(c *trace.Collector) { c.Timeout = 100 * time.Millisecond })},
		"a long timeout":  {env{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"}, &plain},
		"delay":           {env{endpoint: "http://c:4318", "OTEL_BSP_SCHEDULE_DELAY": "60000"}, but(func(c *trace.Collector) { c.Delay = time.Minute })},
		"headers": {env{endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20eA%3D%3D, x-y = z,"}, but(func(c *trace.Collector) {
			c.Headers = http.Header{"Authorization": {"Basic eA=="}, "X-Y": {"z"}}
		})},
		"resource": {env{endpoint: "http://c:4318", "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,site=Graz%2C A"}, but(func(c *trace.Collector) {
			c.Service, c.Attributes = "a", [][2]string{{"site", "Graz, A"}}
		})},
		"service": {env{endpoint: "http://c:4318", "OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "b"}, but(func(c *trace.Collector) {
			c.Service, c.Attributes = "b", [][2]string{}
		})},
		"files": {env{
			endpoint: "http://c:4318", "OTEL_EXPORTER_OTLP_CERTIFICATE": "a", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "b",
			"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "c", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "d",
		}, but(func(c *trace.Collector) { c.CAFile, c.CertFile, c.KeyFile = "b", "c", "d" })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := trace.Read(tc.env.get)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name, v := range map[string][2]string{
		"endpoint": {endpoint, "c:4318"}, "scheme": {endpoint, "unix:///c"}, "exporter": {"OTEL_TRACES_EXPORTER", "console"}, "protocol": {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
		"sampler": {"OTEL_TRACES_SAMPLER", "jaeger_remote"}, "timeout": {"OTEL_EXPORTER_OTLP_TIMEOUT", "5s"}, "no time": {"OTEL_EXPORTER_OTLP_TIMEOUT", "0"}, "delay": {"OTEL_BSP_SCHEDULE_DELAY", "-1"},
		"header": {"OTEL_EXPORTER_OTLP_HEADERS", "hunter2"}, "header of two lines": {"OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%0A"}, "escape": {"OTEL_RESOURCE_ATTRIBUTES", "a=%zz"},
		"many": {"OTEL_RESOURCE_ATTRIBUTES", strings.Repeat("a=b,", 70)}, "half a pair": {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "c.pem"},
	} {
		t.Run("bad "+name, func(t *testing.T) {
			e := env{endpoint: "http://c:4318", "OTEL_TRACES_SAMPLER_ARG": "2"}
			e[v[0]] = v[1]
			c, err := trace.Read(e.get)
			if c != nil || !errors.Is(err, fault.ErrConfig) || fault.Hint(err) == "" || !strings.Contains(err.Error(), v[0]) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s=%s: %+v, %v", v[0], v[1], c, err)
			}
		})
	}
	if _, err := trace.Read(env{endpoint: "http://c", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "NaN"}.get); err == nil {
		t.Error("a ratio that is no number")
	}
}
