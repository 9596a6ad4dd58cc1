package trust

import (
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

const everywhere = "**"

// Kinds are what the rule speaks about.
func (r *Rule) Kinds() []string {
	if len(r.Artifacts) == 0 {
		return []string{KindState}
	}
	return r.Artifacts
}

// keptElsewhere reports whether the rule says that signatures of what is in a repository are in another one.
func (r *Rule) keptElsewhere(repository string) bool {
	return r.Signatures != "" && r.Signatures != repository
}

// reach tells how closely the rule's scope describes a repository: 0 is not at all.
func (r *Rule) reach(repository string) int {
	if margo.IsManager(repository) && r.Scope != repository {
		return 0 // what is not signed is accepted by name only
	}
	if r.Scope == everywhere {
		return 1
	}
	if below, ok := strings.CutSuffix(r.Scope, everywhere); ok {
		if strings.HasPrefix(repository, below) && len(repository) > len(below) {
			return 1 + len(below)
		}
		return 0
	}
	if r.Scope == repository {
		return 2 + len(repository)
	}
	return 0
}

// Match finds the rule that decides about artifacts of a kind in a repository ("host/path").
func (p *Policy) Match(kind, repository string) (Rule, bool) {
	best, reach := Rule{}, 0
	for _, r := range p.Rules {
		if n := r.reach(repository); n > reach && slices.Contains(r.Kinds(), kind) {
			best, reach = r, n
		}
	}
	return best, reach > 0
}
