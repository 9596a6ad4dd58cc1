package status

import "github.com/longshore-dev/longshore/agent/store"

// Progress is where the change to the newest state stands.
type Progress struct {
	store.Progress
	Done  int64 `json:"done,omitempty"`  // bytes of images, while they are being loaded
	Total int64 `json:"total,omitempty"` // as far as known
}

// NewProgress shows what was saved; nil: nothing.
func NewProgress(p *store.Progress) *Progress {
	if p == nil {
		return nil
	}
	out := &Progress{Progress: *p}
	if out.History == nil {
		out.History = []store.Outcome{}
	}
	return out
}

// Loads completes it with how far its images are here.
func (p *Progress) Loads(l *Loading) *Progress {
	if p == nil || l == nil || p.Phase != store.PhaseDownloading {
		return p
	}
	out := *p
	out.Done, out.Total = l.Done, l.Total
	return &out
}
