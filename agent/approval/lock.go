package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// An application keeps changes away from itself by a file in a named volume of its own.
const (
	LockVolume = "update-lock" // name of the volume in the Compose file
	LockFile   = "lock"        // at its top
	MaxLock    = 4 << 10       // bytes of the file
	LockFor    = time.Hour     // of a lock that says no time, from when the file was written
	MaxLockFor = 7 * 24 * time.Hour
)

// ParseLock reads a lock: JSON with the members owner, reason and expires (RFC 3339), all optional, or an empty file. A file that cannot be
// read locks as long as it is there, one that is no such JSON for [LockFor]. component is the owner of a lock that names none.
func ParseLock(component string, data []byte, modified, now time.Time, err error) Lock {
	if err != nil {
		modified = now
	}
	out := Lock{Owner: component, Expires: modified.Add(LockFor)}
	var doc struct {
		Owner   string    `json:"owner"`
		Reason  string    `json:"reason"`
		Expires time.Time `json:"expires"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	switch {
	case err != nil:
		out.Reason = fmt.Sprintf("its lock cannot be read: %v", err)
		return out
	case len(bytes.TrimSpace(data)) == 0:
		return out
	}
	if err := d.Decode(&doc); err != nil {
		out.Reason = fmt.Sprintf("its lock is not valid JSON: %v", err)
		return out
	}
	if _, err := d.Token(); err != io.EOF {
		out.Reason = "its lock has text after the JSON object"
		return out
	}
	if doc.Owner != "" {
		out.Owner = clip(doc.Owner)
	}
	out.Reason = clip(doc.Reason)
	if !doc.Expires.IsZero() {
		out.Expires = doc.Expires
	}
	if latest := modified.Add(MaxLockFor); out.Expires.After(latest) {
		out.Expires = latest
	}
	return out
}

// clip bounds what an application says of itself.
func clip(text string) string {
	const most = 200
	if r := []rune(text); len(r) > most {
		return string(r[:most])
	}
	return text
}
