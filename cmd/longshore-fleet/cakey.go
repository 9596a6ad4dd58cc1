package main

import (
	"context"
	"os"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity/ca"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
)

// caKeyAddress says where the key of an authority is that is in no file. The zero value: it is in ca.key.
type caKeyAddress struct {
	uri          string
	passwordFile string // "": the PIN of a token is in its address or in COSIGN_PKCS11_PIN
}

func caKeyFlags() []cmdline.Flag {
	return []cmdline.Flag{
		{Name: "key", Usage: "`ADDRESS` of the authority's key, in place of ca.key: pkcs11:…, awskms://, azurekms://, gcpkms://, hashivault://", Env: env("ca-key")},
		{Name: "key-password-file", Usage: "`FILE` with the PIN of the token of --key; default: COSIGN_PKCS11_PIN", Env: env("ca-key-password-file")},
	}
}

func caKeyOf(c *cmdline.Context) caKeyAddress {
	return caKeyAddress{c.String("key"), c.String("key-password-file")}
}

// remoteCAKey is an authority's key in a token or a key service; nil: the key is in ca.key.
type remoteCAKey struct{ *remotekey.Signer }

// open connects to the key. ctx is for all that is signed with it.
func (a caKeyAddress) open(ctx context.Context) (*remoteCAKey, error) {
	switch {
	case a.uri == "" && a.passwordFile != "":
		return nil, outcome.Usagef("ca", "--key-password-file needs --key")
	case a.uri == "":
		return nil, nil
	case !remotekey.Is(a.uri):
		return nil, fault.WithHint(outcome.Usagef("ca", "the authority's key %s is no address of a token or a key service", a.uri), "a key in a file is ca.key in --dir, without --key")
	}
	s, err := remotekey.NewSigner(ctx, a.uri, remotekey.Options{
		PKCS11Module: os.Getenv("COSIGN_PKCS11_MODULE_PATH"),
		PIN: func(string) ([]byte, error) {
			if pin, set := os.LookupEnv("COSIGN_PKCS11_PIN"); set || a.passwordFile == "" {
				return []byte(pin), nil
			}
			pin, err := readPassword(a.passwordFile)
			return []byte(pin), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &remoteCAKey{s}, nil
}

// create makes an authority with this key, or with a new one.
func (k *remoteCAKey) create(trustDomain string, now time.Time) (*ca.Authority, error) {
	if k == nil {
		return ca.New(trustDomain, now)
	}
	return ca.NewWith(k.Signer, trustDomain, now)
}

func (k *remoteCAKey) close() {
	if k != nil {
		_ = k.Close() // what was signed is signed
	}
}
