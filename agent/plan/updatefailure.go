package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// recordFailedUpdate records an update of a deployment that has failed.
func (q AssessmentInput) recordFailedUpdate(out *Assessment, d *Deployment, views []*view) {
	if !d.Updating || d.Refused != nil || d.Blocked != nil {
		return
	}
	for _, v := range views {
		if f := v.fault; f != nil && f.FailsUpdate {
			out.Bad = append(out.Bad, store.Bad{
				Digest: d.Digest, DeploymentID: d.ID, Generation: q.Target.Generation, Code: string(f.Code), Source: cmp.Or(v.c.Name, v.d.Name),
				Revision: v.c.Revision, Message: f.Message, Pause: f.pause, Since: q.Now,
			})
			return
		}
	}
}

// RecordFailedPull records an update of a deployment that has failed because one of its images will never come.
func (q AssessmentInput) RecordFailedPull(out *Assessment, d *Deployment) {
	if !d.Updating || d.Refused != nil {
		return
	}
	for c, x := range d.Containers() {
		for _, img := range x.Service.Images() {
			if t, ok := q.Pulls[img.Name()]; ok && t.FailsUpdate {
				out.Bad = append(out.Bad, store.Bad{
					Digest: d.Digest, DeploymentID: d.ID, Generation: q.Accepted.Generation, Code: string(t.Code), Source: c.Name,
					Revision: c.Revision, Message: fmt.Sprintf("service %s: %s", x.Service.Name, t.Message), Since: q.Now,
				})
				return
			}
		}
	}
}

// Text of a status about a revision that was refused. It is only part of messages.
const (
	wordPaused = "; the update is paused"
	wordBack   = "; rolled back to generation %d"
	wordWay    = "; rolling back to generation %d"
	wordKept   = "; generation %d runs on"
	wordBoth   = ", which does not run either: %s"
)

// onTheWayBack reports whether the revision that takes the place of one that failed is still being restored. When that was reported once, it
// stays so.
func (q AssessmentInput) onTheWayBack(d *Deployment, views []*view) bool {
	was := componentOf(q.Before[d.ID], d.Refused.Source)
	message, _, _ := strings.Cut(d.Refused.Message, outputLabel)
	return slices.ContainsFunc(views, func(v *view) bool { return !v.up }) &&
		(was.Error == nil || !strings.HasPrefix(was.Error.Message, message+fmt.Sprintf(wordBack, d.Back)))
}

// rejected adds to a deployment's status which revision of it is refused, and what runs instead. views are nil while the generation is
// still being loaded.
func (q AssessmentInput) rejected(s *store.Status, d *Deployment, views []*view) {
	r := d.Refused
	if r == nil {
		return
	}
	s.Digest = r.Digest
	fault := (*Trouble)(nil)
	for _, v := range views {
		fault = worse(fault, v.fault)
	}
	was := componentOf(q.Before[d.ID], r.Source)
	message, output, said := strings.Cut(r.Message, outputLabel)
	word := wordBack
	switch {
	case r.Pause:
		message += wordPaused
	case d.Deferred:
		message += fmt.Sprintf(wordKept, d.Back)
	default:
		if q.onTheWayBack(d, views) {
			word = wordWay
		}
		message += fmt.Sprintf(word, d.Back)
	}
	if fault != nil && fault.Permanent && !r.Pause {
		cause, its, has := strings.Cut(fault.Message, outputLabel)
		message += fmt.Sprintf(wordBoth, cause)
		switch {
		case was.Error != nil && strings.HasPrefix(was.Error.Message, message[:len(message)-len(cause)]):
			message, said = was.Error.Message, false // the first one is kept
		case !said:
			output, said = its, has // one output a message: that of the refused revision when there is one
		}
	}
	if said {
		message += outputLabel + output
	}
	c := store.Component{Name: r.Source, Revision: r.Revision}
	at := len(s.Components)
	for i, x := range s.Components {
		if x.Name == r.Source {
			c, at = x, i
		}
	}
	if at == len(s.Components) {
		s.Components = append(s.Components, c)
	}
	c.State, c.Error = margo.StateFailed, &margo.StatusError{Code: r.Code, Source: r.Source, Message: message}
	q.stamp(&c, was)
	s.Components[at] = c
}
