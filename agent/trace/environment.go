package trace

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Collector is where traces go, and what they say of their origin. [Read] makes it.
type Collector struct {
	URL        string        // to which requests are posted
	Headers    http.Header   // of each request; nil: none
	Timeout    time.Duration // of one request
	Delay      time.Duration // that a span waits for others
	Ratio      float64       // of the changes that are traced: from 0 to 1
	Service    string        // service.name; "": longshore-agent
	Attributes [][2]string   // of the resource

	CAFile            string // authorities of the collector (PEM); "": the system's
	CertFile, KeyFile string // certificate of the agent (PEM); "": none
}

const (
	defaultService = "longshore-agent"
	tracesPath     = "/v1/traces"
	protocol       = "http/protobuf"
	maxEntries     = 64 // of headers, or of attributes
)

// Read reads OpenTelemetry's variables. nil without an error: traces are off, because no collector is named, or the variables say so.
// An error names the variable and, but for headers, what is wrong in it.
func Read(getenv func(string) string) (*Collector, error) {
	r := reader{getenv: getenv}
	at := r.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	if base := r.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""); at == "" && base != "" {
		at = strings.TrimSuffix(base, "/") + tracesPath
	}
	exporter := r.get("OTEL_TRACES_EXPORTER", "otlp")
	if at == "" || strings.EqualFold(r.get("OTEL_SDK_DISABLED", ""), "true") || exporter == "none" {
		return nil, nil
	}
	if u, err := url.Parse(at); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.fault("OTEL_EXPORTER_OTLP_ENDPOINT", "not the address of a collector", "write it like http://192.0.2.7:4318")
	}
	if exporter != "otlp" {
		r.fault("OTEL_TRACES_EXPORTER", fmt.Sprintf("%q is neither otlp nor none", exporter), "leave it out")
	}
	if p := r.otlp("PROTOCOL", protocol); p != protocol {
		r.fault("OTEL_EXPORTER_OTLP_PROTOCOL", fmt.Sprintf("the agent does not send %q", p), "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="+protocol+", and name the collector's port for it, mostly 4318")
	}
	c := &Collector{
		URL: at, Timeout: min(sendLimit, r.milliseconds(r.otlp("TIMEOUT", ""), "OTEL_EXPORTER_OTLP_TIMEOUT", sendLimit)),
		Delay: r.milliseconds(getenv("OTEL_BSP_SCHEDULE_DELAY"), "OTEL_BSP_SCHEDULE_DELAY", batchWait), Ratio: r.ratio(),
		CAFile: r.otlp("CERTIFICATE", ""), CertFile: r.otlp("CLIENT_CERTIFICATE", ""), KeyFile: r.otlp("CLIENT_KEY", ""),
		Attributes: r.list("OTEL_RESOURCE_ATTRIBUTES", getenv("OTEL_RESOURCE_ATTRIBUTES")),
	}
	for _, kv := range r.list("OTEL_EXPORTER_OTLP_HEADERS", r.otlp("HEADERS", "")) {
		if c.Headers == nil {
			c.Headers = http.Header{}
		}
		c.Headers.Add(kv[0], kv[1])
	}
	c.Attributes = slices.DeleteFunc(c.Attributes, func(kv [2]string) bool {
		if kv[0] == "service.name" {
			c.Service = kv[1]
		}
		return kv[0] == "service.name"
	})
	c.Service = r.get("OTEL_SERVICE_NAME", c.Service)
	if (c.CertFile == "") != (c.KeyFile == "") {
		r.fault("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "it and OTEL_EXPORTER_OTLP_CLIENT_KEY belong together", "set both, or none")
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

// resource describes the agent.
func (c *Collector) resource(o Options) []attribute {
	out := []attribute{
		{key: "service.name", text: cmp.Or(c.Service, defaultService)},
		{key: "service.version", text: o.Version},
		{key: "service.instance.id", text: o.Device},
		{key: "device.id", text: o.Device},
	}
	for _, kv := range c.Attributes {
		i := slices.IndexFunc(out, func(a attribute) bool { return a.key == kv[0] })
		if i < 0 {
			out = append(out, attribute{key: kv[0]})
			i = len(out) - 1
		}
		out[i].text = kv[1]
	}
	return slices.DeleteFunc(out, func(a attribute) bool { return a.text == "" })
}

// Name is the collector's address without what may be a secret.
func (c *Collector) Name() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// reader reads variables; err is the first fault.
type reader struct {
	getenv func(string) string
	err    error
}

func (r *reader) fault(variable, what, hint string) {
	if r.err == nil {
		r.err = fault.WithHint(fmt.Errorf("%s: %s: %w", variable, what, fault.ErrConfig), hint)
	}
}

// get is a variable, or what counts where it is not set: an empty one is not.
func (r *reader) get(variable, fallback string) string { return cmp.Or(r.getenv(variable), fallback) }

// otlp is a variable for traces, or else for all that is sent by OTLP.
func (r *reader) otlp(name, fallback string) string {
	return cmp.Or(r.getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), r.getenv("OTEL_EXPORTER_OTLP_"+name), fallback)
}

func (r *reader) milliseconds(s, variable string, fallback time.Duration) time.Duration {
	if s == "" {
		return fallback
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		r.fault(variable, fmt.Sprintf("%q is no number of milliseconds", s), "write it like 5000")
	}
	return time.Duration(n) * time.Millisecond
}

// ratio is how many changes are traced. The sampler of a parent never counts: changes have none.
func (r *reader) ratio() float64 {
	switch s := strings.TrimPrefix(r.get("OTEL_TRACES_SAMPLER", "always_on"), "parentbased_"); s {
	case "always_on":
	case "always_off":
		return 0
	case "traceidratio":
		f, err := strconv.ParseFloat(r.get("OTEL_TRACES_SAMPLER_ARG", "1"), 64)
		if err != nil || !(f >= 0 && f <= 1) {
			r.fault("OTEL_TRACES_SAMPLER_ARG", "not a number from 0 to 1", "write it like 0.25")
		}
		return f
	default:
		r.fault("OTEL_TRACES_SAMPLER", fmt.Sprintf("the agent has no sampler %q", s), "write always_on, always_off or traceidratio")
	}
	return 1
}

// list reads "key=value,key=value", percent-encoded. What is wrong is told without the values: they may be secrets.
func (r *reader) list(variable, s string) (out [][2]string) {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > maxEntries {
		r.fault(variable, fmt.Sprintf("more than %d entries", maxEntries), "name fewer")
		return nil
	}
	for i, part := range parts {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		key, err1 := url.PathUnescape(strings.TrimSpace(key))
		value, err2 := url.PathUnescape(strings.TrimSpace(value))
		if !ok || key == "" || err1 != nil || err2 != nil || strings.ContainsAny(key+value, "\r\n\x00") {
			r.fault(variable, fmt.Sprintf("entry %d is no key=value", i+1), "write key=value,key=value, with %2C for a comma in a value")
			return nil
		}
		out = append(out, [2]string{key, value})
	}
	return out
}
