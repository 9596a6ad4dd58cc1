package enroll

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

// A join token is "lsj_ID_SECRET", or "lsj_ID_SECRET_PIN" with the fingerprint of the manager's authority.
const (
	tokenPrefix = "lsj_"
	tokenID     = 10 // bytes
	tokenSecret = 32
	maxToken    = 512
)

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// MintToken makes a join token. pin, which may be "", is the fingerprint by which the device
// authenticates the manager. The stored values do not reveal the text.
func MintToken(device string, pin digest.Digest, now time.Time, lifetime time.Duration) (text string, t store.JoinToken) {
	var raw [tokenID + tokenSecret]byte
	_, _ = rand.Read(raw[:]) // it never returns an error
	id, secret := tokenText.EncodeToString(raw[:tokenID]), tokenText.EncodeToString(raw[tokenID:])
	hash := sha256.Sum256([]byte(secret))
	text = tokenPrefix + id + "_" + secret
	if pin != "" {
		text += "_" + pin.Encoded()
	}
	return text, store.JoinToken{ID: id, Device: device, Hash: hash[:], Created: now, Expires: now.Add(lifetime)}
}

func parseToken(text string) (*store.JoinProof, error) {
	id, secret, ok := strings.Cut(strings.TrimPrefix(text, tokenPrefix), "_")
	if !strings.HasPrefix(text, tokenPrefix) || !ok || len(text) > maxToken {
		return nil, fmt.Errorf("the join token does not have the form lsj_ID_SECRET: %w", fault.ErrDenied)
	}
	secret, _, _ = strings.Cut(secret, "_")
	hash := sha256.Sum256([]byte(secret))
	return &store.JoinProof{ID: id, Hash: hash[:]}, nil
}
