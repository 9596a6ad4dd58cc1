package compose

import (
	"cmp"
	"math"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// maxReplicas bounds one service: each replica is a container with a network namespace.
const maxReplicas = 64

// maxAttempts bounds the attempts of restart policies.
const maxAttempts = math.MaxInt32

// deploy reads the number of replicas, the restart policy and the update configuration.
func (t *translation) deploy(n *composefile.Node, s *workload.Service) {
	d := n.Get("deploy")
	if !d.IsNull() && !t.isMapping(d) {
		return
	}
	scale, replicas := n.Get("scale"), d.Get("replicas")
	count := t.integer(replicas, 0, maxReplicas)
	if !scale.IsNull() {
		count = t.sameValue(scale, "deploy.replicas", count, t.integer(scale, 0, maxReplicas))
	}
	if count > 1 {
		s.Replicas = int(count)
	}
	if d.Get("mode").Text() == "global" && s.Replicas > 1 {
		t.Fault(d.Get("mode"), "", "global is one container on a device, and replicas asks for %d", s.Replicas)
	}
	if t.choice(d.Get("endpoint_mode"), "vip", "dnsrr") == "dnsrr" {
		t.Notice(d.Get("endpoint_mode"), "vip: the name of a service resolves to its one address, which leads to the replicas in turn")
	}
	t.restartPolicy(n, d.Get("restart_policy"), s)
	s.Update = t.update(d.Get("update_config"))
	s.Rollback = t.update(d.Get("rollback_config"))
	if s.Rollback.FailureAction == workload.ActRollback {
		t.Fault(d.Get("rollback_config", "failure_action"), "", "a rollback that fails is not rolled back: continue or pause")
	}
}

func (t *translation) restartPolicy(service, n *composefile.Node, s *workload.Service) {
	if !t.isMapping(n) {
		return
	}
	r := workload.Restart{
		Max: int(t.integer(n.Get("max_attempts"), 0, maxAttempts)), Delay: t.duration(n.Get("delay")), Window: t.duration(n.Get("window")),
	}
	switch t.choice(n.Get("condition"), "none", "on-failure", "any") {
	case "none":
	case "on-failure":
		r.Policy = workload.RestartOnFailure
	default:
		r.Policy = workload.RestartAlways // Compose's default: any
	}
	if own := service.Get("restart"); !own.IsNull() && s.Restart.Policy != r.Policy &&
		(s.Restart.Policy != workload.RestartUnlessStopped || r.Policy != workload.RestartAlways) {
		t.Fault(n, "say it with one of them", "it differs from restart")
	}
	if s.Restart.Policy == workload.RestartUnlessStopped {
		r.Policy = s.Restart.Policy
	}
	r.Max = cmp.Or(r.Max, s.Restart.Max)
	s.Restart = r
}

func (t *translation) update(n *composefile.Node) workload.Update {
	var u workload.Update
	if !t.isMapping(n) {
		return u
	}
	if t.choice(n.Get("order"), string(workload.StartFirst), string(workload.StopFirst)) == string(workload.StartFirst) {
		u.Order = workload.StartFirst
	}
	u.Parallelism = int(t.integer(n.Get("parallelism"), 0, maxReplicas))
	if n.Get("parallelism").IsNull() {
		u.Parallelism = 1 // Compose's default: one at a time
	}
	u.Delay, u.Monitor = t.duration(n.Get("delay")), t.duration(n.Get("monitor"))
	u.FailureAction = workload.FailureAction(t.choice(n.Get("failure_action"), string(workload.ActPause), string(workload.ActContinue), string(workload.ActRollback)))
	if r := n.Get("max_failure_ratio"); !r.IsNull() {
		v, ok := t.number(r)
		if ok && (v < 0 || v > 1) {
			t.Fault(r, "", "%q is no share: 0 to 1", composefile.Clip(r.Text()))
		}
		u.MaxFailureRatio = v
	}
	return u
}

// orders finds the services whose old and new container cannot run at the same time, and adds notices.
func (t *translation) orders(p *workload.Project) {
	for i := range p.Services {
		s := &p.Services[i]
		n := t.root.Get("services", s.Name)
		for key, u := range map[string]*workload.Update{"update_config": &s.Update, "rollback_config": &s.Rollback} {
			if why := p.Exclusive(s); why != "" && u.Order == workload.StartFirst {
				u.Order = ""
				t.Notice(n.Get("deploy", key, "order"), "stop-first: %s", why)
			}
		}
	}
}
