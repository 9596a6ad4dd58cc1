package status

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

// A token is "lsf_<id>_<secret>": the id finds it, so that the secret is compared in constant time and never looked up.
const (
	tokenPrefix = "lsf_"
	idBytes     = 10 // 80 bits: unique
	secretBytes = 32
	maxToken    = 256 // bytes of a header worth looking at
)

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Mint makes a token for a device and the children behind it. The text is shown once and never stored; what is stored
// says nothing about it.
func Mint(device artifacts.DeviceID, now time.Time) (text string, t store.Token, err error) {
	var raw [idBytes + secretBytes]byte
	if _, err := io.ReadFull(rand.Reader, raw[:]); err != nil {
		return "", store.Token{}, fmt.Errorf("make a token: %w", err)
	}
	id, secret := tokenText.EncodeToString(raw[:idBytes]), tokenText.EncodeToString(raw[idBytes:])
	hash := sha256.Sum256([]byte(secret))
	return tokenPrefix + id + "_" + secret, store.Token{ID: id, Device: string(device), Hash: hash[:], Created: now}, nil
}

// caller is the device whose token a request carries.
type caller struct {
	device string
}

// speaksFor tells whether the caller may report for a device: itself or one behind it.
func (c caller) speaksFor(device string) bool {
	return device == c.device || strings.HasPrefix(device, c.device+"/")
}

func (a *api) authenticate(r *http.Request) (caller, *problem) {
	const who = "a bearer token of the device is needed"
	kind, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || len(text) > maxToken {
		return caller{}, notAuthorized(who)
	}
	id, secret, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), tokenPrefix), "_")
	if !ok {
		return caller{}, notAuthorized(who)
	}
	t, err := a.Store.Token(r.Context(), id)
	hash := sha256.Sum256([]byte(secret))
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return caller{}, notAuthorized("the token is not known, or revoked")
	case err != nil:
		return caller{}, broke(err)
	case subtle.ConstantTimeCompare(hash[:], t.Hash) != 1:
		return caller{}, notAuthorized("the token is not known, or revoked")
	}
	return caller{device: t.Device}, nil
}
