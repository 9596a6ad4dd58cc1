package workload

import "time"

// Health is how a running container is judged.
type Health struct {
	Probe       Probe
	Interval    time.Duration // > 0
	Timeout     time.Duration // > 0
	Retries     int           // > 0: failures in a row until unhealthy
	StartPeriod time.Duration // failures in it do not count

	StartInterval time.Duration `json:",omitzero"` // between probes in the start period; 0: Interval
}

// Defaults of Compose and of an image's HEALTHCHECK.
const (
	HealthInterval = 30 * time.Second
	HealthTimeout  = 30 * time.Second
	HealthRetries  = 3
)

// Probe is one question to a container: exactly one of Exec, HTTP and TCP is set. The zero value of a service's own
// Health is the test of the image, judged by the intervals of the service.
type Probe struct {
	Exec []string   // argv in the container; exit 0 is good
	HTTP *HTTPProbe // from inside the container's network namespace; 2xx and 3xx are good
	TCP  uint16     // port that must accept, from inside the container's network namespace
}

// HTTPProbe is a GET.
type HTTPProbe struct {
	Port uint16
	Path string // "": "/"
}
