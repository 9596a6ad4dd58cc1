package registry

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"net/url"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

const (
	maxSession = 64 << 10
	// sessionAge is the time for which registries keep abandoned uploads: a week at distribution, less at others.
	sessionAge = 7 * 24 * time.Hour
)

// session is the stored state of an upload. It has no credentials, but its address may be sufficient to write to the upload, so the
// file is for its user alone.
type session struct {
	Location string `json:"location"`
	Hashed   int64  `json:"hashed"` // bytes
	Hash     []byte `json:"hash"`   // state of the hash after them
}

// sessionFile is the name of the file with the state of an upload to a repository.
func sessionFile(a *access, d digest.Digest) string {
	sum := sha256.Sum256([]byte(a.address("") + "\n" + a.repo.Reference.Repository + "\n" + d.String()))
	return hex.EncodeToString(sum[:]) + ".json"
}

// parseSession reads a file that [upload.remember] wrote: for a blob of a size at an address.
func parseSession(data []byte, at *url.URL, d digest.Digest, size int64) (location *url.URL, hashed int64, h hash.Hash, err error) {
	var s session
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, 0, nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	location, err = url.Parse(s.Location)
	if err != nil || !wire.SameOrigin(location, at) { // requests to it are sent with credentials
		return nil, 0, nil, fmt.Errorf("an upload at another address: %w", fault.ErrInvalid)
	}
	h = d.Algorithm().Hash()
	m, ok := h.(encoding.BinaryUnmarshaler)
	if !ok || m.UnmarshalBinary(s.Hash) != nil || s.Hashed <= 0 || s.Hashed > size {
		return nil, 0, nil, fmt.Errorf("the state of a hash: %w", fault.ErrInvalid)
	}
	return location, s.Hashed, h, nil
}

// recall continues the upload of an earlier run, if the registry still has it.
func (u *upload) recall(ctx context.Context) bool {
	if u.folder == "" {
		return false
	}
	data, err := u.folder.Read(u.file, maxSession)
	if err != nil {
		return false
	}
	at, err := url.Parse(u.a.address(""))
	if err == nil {
		u.location, u.hashed, u.hash, err = parseSession(data, at, u.desc.Digest, u.desc.Size)
	}
	if err == nil {
		err = u.settle(ctx)
	}
	if u.recalled = err == nil; err != nil {
		u.forget()
	}
	return u.recalled
}

// settle polls until the registry has processed a chunk that was in progress when an earlier run ended: two requests that write
// to one session at the same time corrupt it.
func (u *upload) settle(ctx context.Context) error {
	err, before := u.ask(ctx), int64(-1)
	for tries := 0; err == nil && u.off != before && tries < maxUploadTries; tries++ {
		before = u.off
		if err = sleep(ctx, wire.Backoff(1)); err == nil {
			err = u.ask(ctx)
		}
	}
	return err
}

// remember stores the session for a later run. If it cannot be stored, the blob is sent again then.
func (u *upload) remember() {
	data, err := json.Marshal(session{u.location.String(), u.hashed, state(u.hash)})
	if err != nil || u.hashed != u.off {
		return
	}
	if at := u.folder.Keep(u.file, data); !at.IsZero() {
		u.folder.RemoveOlder(at.Add(-sessionAge))
	}
}

func (u *upload) forget() {
	if u.folder != "" {
		u.folder.Remove(u.file) // an outdated one is detected
	}
}
