package approval_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/approval"
)

// A lock that is not as it should be locks all the same, and none locks for ever.
func TestParseLock(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	written := now.Add(-30 * time.Minute)
	for name, x := range map[string]struct {
		text    string
		err     error
		owner   string
		reason  string
		expires time.Time
	}{
		"empty":           {"", nil, "press", "", written.Add(time.Hour)},
		"all":             {`{"owner": "line 3", "reason": "batch 17", "expires": "2026-11-24T14:00:00Z"}`, nil, "line 3", "batch 17", now.Add(2 * time.Hour)},
		"for ever":        {`{"expires": "2100-01-01T00:00:00Z"}`, nil, "press", "", written.Add(approval.MaxLockFor)},
		"half written":    {`{"owner": "li`, nil, "press", "not valid JSON", written.Add(time.Hour)},
		"more than one":   {`{} {}`, nil, "press", "after the JSON object", written.Add(time.Hour)},
		"cannot be read":  {"", errors.New("input/output error"), "press", "input/output error", now.Add(time.Hour)},
		"a long owner":    {`{"owner": "` + strings.Repeat("x", 300) + `"}`, nil, strings.Repeat("x", 200), "", written.Add(time.Hour)},
		"unknown members": {`{"since": 1}`, nil, "press", "", written.Add(time.Hour)},
	} {
		l := approval.ParseLock("press", []byte(x.text), written, now, x.err)
		if l.Owner != x.owner || !strings.Contains(l.Reason, x.reason) || x.reason == "" && l.Reason != "" || !l.Expires.Equal(x.expires) {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add([]byte(`{"owner": "line 3", "reason": "batch 17", "expires": "2026-11-24T14:00:00Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Unix(1_800_000_000, 0)
		if l := approval.ParseLock("press", data, now, now, nil); l.Owner == "" || l.Expires.After(now.Add(approval.MaxLockFor)) {
			t.Errorf("%q: %+v", data, l)
		}
	})
}
