package agent

import (
	"cmp"
	"strings"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// hint is what a person can do about a code: the error's own hint, else the explanation of the code, with this device's names in the commands.
// target names the containers that it is about, "": none.
func (l *loop) hint(code codes.Code, own, target string) string {
	doc := codes.Explain(code)
	names := []string{"--device DEVICE", "--device " + string(l.o.Device)}
	if target != "" {
		names = append(names, "DEPLOYMENT/SERVICE", target)
	}
	if !margo.IsManager(l.o.Repository) {
		host, _, _ := strings.Cut(l.o.Repository, "/")
		names = append(names, "login HOST", "login "+host)
		switch r := l.refused; {
		case code == codes.StateStale: // a freshness statement is about the tag
			names = append(names, "REFERENCE", l.o.Repository+":"+l.o.Tag)
		case r != nil && r.Code == string(code) && doc.Check > 0 && doc.Check < firstContentCheck:
			names = append(names, "REFERENCE", l.o.Repository+"@"+r.Digest.String())
		}
	}
	return strings.NewReplacer(names...).Replace(cmp.Or(own, doc.Action))
}

// firstContentCheck is the first of the checks that are about more than the state itself.
const firstContentCheck = 7

// troubled names the container of a deployment whose output tells most: the first that failed, else all of them.
func troubled(d status.Deployment) string {
	for _, c := range d.Components {
		for _, s := range c.Services {
			if s.Health == plan.HealthUnhealthy || s.Status == workload.Exited && (s.ExitCode != 0 || !s.NextStart.IsZero()) {
				return d.Name + "/" + s.Name
			}
		}
	}
	return d.Name
}
