package status

import (
	"slices"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// WithoutOutput is a status for those who may not read what containers write: error messages end before it. s stays as it is.
func (s Status) WithoutOutput() Status {
	s.Problems = slices.Clone(s.Problems)
	for i := range s.Problems {
		s.Problems[i].Message = workload.WithoutOutput(s.Problems[i].Message)
	}
	s.Deployments = slices.Clone(s.Deployments)
	for i := range s.Deployments {
		d := &s.Deployments[i]
		d.Error = withoutOutput(d.Error)
		if d.Refused != nil {
			r := *d.Refused
			r.Message = workload.WithoutOutput(r.Message)
			d.Refused = &r
		}
		d.Components = slices.Clone(d.Components)
		for j := range d.Components {
			d.Components[j].Error = withoutOutput(d.Components[j].Error)
		}
	}
	if s.Progress != nil {
		p := *s.Progress
		p.Message, p.History = workload.WithoutOutput(p.Message), slices.Clone(p.History)
		for i := range p.History {
			p.History[i].Message = workload.WithoutOutput(p.History[i].Message)
		}
		s.Progress = &p
	}
	return s
}

func withoutOutput(e *margo.StatusError) *margo.StatusError {
	if e == nil {
		return nil
	}
	out := *e
	out.Message = workload.WithoutOutput(e.Message)
	return &out
}
