package status

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
)

// SecurityEvent is something that an attack looks like; the same once more is counted.
type SecurityEvent struct {
	Code       codes.Code    `json:"code"`
	Digest     digest.Digest `json:"digest,omitempty"`     // of the state
	Generation uint64        `json:"generation,omitempty"` // 0: not known
	Message    string        `json:"message"`              // of the last time
	First      time.Time     `json:"first"`
	Last       time.Time     `json:"last"`
	Count      uint64        `json:"count"`
}

// NewSecurityEvent shows a record.
func NewSecurityEvent(s store.Security) SecurityEvent {
	return SecurityEvent{codes.Code(s.Code), s.Digest, s.Generation, s.Message, s.First, s.Last, s.Count}
}
