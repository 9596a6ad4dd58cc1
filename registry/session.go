package registry

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"net/url"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/delay"
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
	Location string      `json:"location"`
	States   []hashState `json:"states"` // of the hash, the first after the bytes that the registry has confirmed, ascending
}

// hashState is the state of a hash after some bytes of a blob.
type hashState struct {
	Hashed int64  `json:"hashed"` // bytes
	Hash   []byte `json:"hash"`
}

// of reads the state.
func (s hashState) of(d digest.Digest) (hash.Hash, error) {
	h := d.Algorithm().Hash()
	m, ok := h.(encoding.BinaryUnmarshaler)
	if !ok || m.UnmarshalBinary(s.Hash) != nil {
		return nil, fmt.Errorf("the state of a hash: %w", fault.ErrInvalid)
	}
	return h, nil
}

// sessionFile is the name of the file with the state of an upload to a repository.
func sessionFile(a *access, d digest.Digest) string {
	sum := sha256.Sum256([]byte(a.address("") + "\n" + a.repo.Reference.Repository + "\n" + d.String()))
	return hex.EncodeToString(sum[:]) + ".json"
}

// parseSession reads a file that [upload.remember] wrote: for a blob of a size at an address.
func parseSession(data []byte, at *url.URL, d digest.Digest, size int64) (location *url.URL, states []hashState, err error) {
	var s session
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	location, err = url.Parse(s.Location)
	if err != nil || !wire.SameOrigin(location, at) { // requests to it are sent with credentials
		return nil, nil, fmt.Errorf("an upload at another address: %w", fault.ErrInvalid)
	}
	before := int64(-1)
	for _, one := range s.States {
		if _, err := one.of(d); err != nil || one.Hashed <= before || one.Hashed > size {
			return nil, nil, fmt.Errorf("the state of a hash: %w", fault.ErrInvalid)
		}
		before = one.Hashed
	}
	if len(s.States) == 0 {
		return nil, nil, fmt.Errorf("no state of a hash: %w", fault.ErrInvalid)
	}
	return location, s.States, nil
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
		var to *url.URL
		to, u.states, err = parseSession(data, at, u.desc.Digest, u.desc.Size)
		u.move(to)
	}
	if err == nil {
		u.hashed = u.states[0].Hashed
		u.hash, err = u.states[0].of(u.desc.Digest)
	}
	if err == nil {
		err = u.settle(ctx)
	}
	if u.recalled = err == nil; !u.recalled && !passing(ctx, err) {
		u.forget()
	}
	return u.recalled
}

// passing reports whether an error says nothing of the session, which may be continued later.
func passing(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || errors.Is(err, fault.ErrDenied)
}

// settle polls until the registry has processed a chunk that was in progress when an earlier run ended: two requests that write
// to one session at the same time corrupt it.
func (u *upload) settle(ctx context.Context) error {
	err, before := u.ask(ctx), int64(-1)
	for tries := 0; err == nil && u.off != before && tries < maxUploadTries; tries++ {
		before = u.off
		if err = delay.For(ctx, wire.Backoff(1)); err == nil {
			err = u.ask(ctx)
		}
	}
	return err
}

// remember stores the session for a later run. If it cannot be stored, the blob is sent again then.
func (u *upload) remember() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.states = []hashState{{u.hashed, state(u.hash)}}
	u.keep()
}

// continues drops what is stored of the chunks before, so that marks of the next one have room, but for the oldest: a registry that loses
// its newest bytes in a power cut has those. The file stays until the first mark.
func (u *upload) continues() {
	u.mu.Lock()
	defer u.mu.Unlock()
	current := hashState{u.hashed, state(u.hash)}
	if len(u.states) > 0 && u.states[0].Hashed < u.hashed {
		u.states = []hashState{u.states[0], current}
	} else {
		u.states = []hashState{current}
	}
}

// mark stores the state of the hash in the middle of a chunk: the registry may keep what has arrived of it.
func (u *upload) mark(hashed int64, h hash.Hash) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := len(u.states); n > 0 && n <= marks+1 && hashed > u.states[n-1].Hashed {
		u.states = append(u.states, hashState{hashed, state(h)})
		u.keep()
	}
}

// keep writes the file of the session. The caller holds u.mu.
func (u *upload) keep() {
	data, err := json.Marshal(session{u.location.String(), u.states})
	if err != nil {
		return
	}
	u.kept = u.folder.Keep(u.file, data)
}

// skip takes the newest state of the hash that the registry has all bytes of, so that the source need not send them again.
func (u *upload) skip() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.states {
		if s.Hashed <= u.hashed || s.Hashed > u.off {
			continue
		}
		if h, err := s.of(u.desc.Digest); err == nil {
			u.hash, u.hashed = h, s.Hashed
		}
	}
}

func (u *upload) forget() {
	if u.folder != "" {
		u.folder.Remove(u.file) // an outdated one is detected
	}
}
