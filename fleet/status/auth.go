package status

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"slices"
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

// Mint makes a token for a device, or for several, and the children behind each. The text is shown once and never stored; what is
// stored does not reveal it.
func Mint(now time.Time, devices ...artifacts.DeviceID) (text string, t store.Token, err error) {
	if len(devices) == 0 {
		return "", store.Token{}, fmt.Errorf("make a token: no device is named: %w", fault.ErrInvalid)
	}
	var raw [idBytes + secretBytes]byte
	_, _ = rand.Read(raw[:]) // it never returns an error
	id, secret := tokenText.EncodeToString(raw[:idBytes]), tokenText.EncodeToString(raw[idBytes:])
	hash := sha256.Sum256([]byte(secret))
	t = store.Token{ID: id, Hash: hash[:], Created: now}
	for _, d := range devices {
		t.Devices = append(t.Devices, string(d))
	}
	return tokenPrefix + id + "_" + secret, t, nil
}

// Client is who sends a request: one identity, for a device or for several, and for the children behind each. Its State Manifests
// are one sequence of versions.
type Client struct {
	ID      string   // of the identity; for a client of one device the id of the device, others have a ":" in it
	Devices []string // at least one
}

// DeviceClient is the client that one device is.
func DeviceClient(device string) Client { return Client{ID: device, Devices: []string{device}} }

// as is the client as one that says which device it is: of several devices it has only that one then. false: it may not be that one.
func (c Client) as(device string) (Client, bool) {
	by, ok := c.For(device)
	if ok && by == device && len(c.Devices) > 1 {
		return DeviceClient(device), true
	}
	return c, ok
}

// For returns the device of the client that a device is, or that is its gateway; false: the client may not report for it.
func (c Client) For(device string) (string, bool) {
	if slices.Contains(c.Devices, device) {
		return device, true
	}
	for _, d := range c.Devices {
		if strings.HasPrefix(device, d+"/") {
			return d, true
		}
	}
	return "", false
}

// Identify identifies the client of a request: by a certificate, or by a token. An error of [Denied] means that the client is
// not known or may not; fault.ErrTemporary that it could not be found out.
type Identify func(r *http.Request) (Client, error)

// Denied is an error of [Identify]: the client is answered 403 with why as the detail.
func Denied(why string) error { return denied(why) }

type denied string

func (d denied) Error() string        { return string(d) }
func (d denied) Is(target error) bool { return target == fault.ErrDenied }

// BearerTokens identifies clients by the tokens of [Mint].
func BearerTokens(tokens store.Tokens) Identify {
	return func(r *http.Request) (Client, error) {
		const who = "a bearer token of the device is needed"
		kind, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(kind, "Bearer") || len(text) > maxToken {
			return Client{}, Denied(who)
		}
		id, secret, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), tokenPrefix), "_")
		if !ok {
			return Client{}, Denied(who)
		}
		t, err := tokens.Token(r.Context(), id)
		hash := sha256.Sum256([]byte(secret))
		switch {
		case errors.Is(err, fault.ErrNotFound):
			return Client{}, Denied("the token is not known, or revoked")
		case err != nil:
			return Client{}, err
		case subtle.ConstantTimeCompare(hash[:], t.Hash) != 1:
			return Client{}, Denied("the token is not known, or revoked")
		}
		if len(t.Devices) == 1 {
			return DeviceClient(t.Devices[0]), nil
		}
		return Client{ID: "token:" + t.ID, Devices: t.Devices}, nil
	}
}
