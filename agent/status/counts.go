package status

import "github.com/longshore-dev/longshore/agent/codes"

// Counts are what an agent has counted since it started.
type Counts struct {
	Polls       uint64 // checks of the source that ended
	PollErrors  uint64 // of these, those where it could not be asked
	BytesPulled uint64 // of images
	Events      map[EventKind]uint64
	Security    map[codes.Code]uint64 // security events since the device's database was made
}
