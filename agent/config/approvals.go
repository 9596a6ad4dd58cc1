package config

import (
	"path"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Approvals says which changes people at the device approve, and how. The zero value: none need it, and root alone decides.
type Approvals struct {
	Policy    approval.Policy
	Group     string // whose members may decide at the socket operator.sock; "": nobody
	Directory string // of decisions in files; "": none are read
	Owner     string // user whose files count in Directory, beside root; "": root's alone
}

func (r reader) approvals(n *strict.Node) (a Approvals) {
	if n == nil {
		return a
	}
	kinds := plan.Kinds() // all is these: who has never thought of the trust policy must not keep devices from it
	for _, x := range n.Need("changes").Items() {
		switch k := plan.Kind(x.Filled()); {
		case k == "all":
			a.Policy.Kinds = append(a.Policy.Kinds, kinds...)
		case k != plan.TrustPolicy && !slices.Contains(kinds, k):
			x.HintFaultf("use all, install, images, parameters, configuration, removal or trust", "not a kind of change")
		default:
			a.Policy.Kinds = append(a.Policy.Kinds, k)
		}
	}
	for _, x := range n.Get("deployments").Items() {
		pattern := x.Filled()
		if _, err := path.Match(pattern, ""); err != nil {
			x.Faultf("not a pattern: * stands for any text, ? for one character")
		}
		a.Policy.Deployments = append(a.Policy.Deployments, pattern)
	}
	a.Policy.AutomaticAfter = atLeast(n.Get("automaticAfter"), MinInterval, 0)
	a.Policy.ValidFor = atLeast(n.Get("validFor"), MinInterval, 0)
	a.Group = name(n.Get("group"))
	a.Directory, a.Owner = r.path(n.Get("directory"), ""), name(n.Get("owner"))
	if a.Owner != "" && a.Directory == "" {
		n.Get("owner").Faultf("needs directory: whose files are meant")
	}
	n.Close()
	return a
}

// name is the name of a user or a group of this device.
func name(n *strict.Node) string {
	if n == nil {
		return ""
	}
	s := n.Filled()
	if strings.ContainsAny(s, ":/ \t\n") {
		n.Faultf("not a name of a user or group")
	}
	return s
}
