package status

import (
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
)

// Problem is one thing that is not as it should be.
type Problem struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"` // what is wrong
	Doing   string     `json:"doing"`   // what the agent does about it
	Hint    string     `json:"hint"`    // what a person can do
	Since   time.Time  `json:"since,omitzero"`
}
