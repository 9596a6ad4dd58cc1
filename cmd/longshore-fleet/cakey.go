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

var caKeyFlags = []cmdline.Flag{
	{Name: "key", Usage: "`ADDRESS` of the authority's key, in place of ca.key: pkcs11:…, awskms://, azurekms://, gcpkms://, hashivault://", Env: env("ca-key")},
	{Name: "key-password-file", Usage: "`FILE` with the PIN of the token of --key; default: COSIGN_PKCS11_PIN", Env: env("ca-key-password-file")},
}

// openCAKey connects to an authority's key in a token or a key service; nil: the key is in ca.key. ctx is for all that is signed with it.
// Without a passwordFile, the PIN of a token is in its address or in COSIGN_PKCS11_PIN.
func openCAKey(ctx context.Context, uri, passwordFile string) (*remotekey.Signer, error) {
	switch {
	case uri == "" && passwordFile != "":
		return nil, outcome.Usagef("ca", "--key-password-file needs --key")
	case uri == "":
		return nil, nil
	case !remotekey.Is(uri):
		return nil, fault.WithHint(outcome.Usagef("ca", "the authority's key %s is no address of a token or a key service", uri), "a key in a file is ca.key in --dir, without --key")
	}
	return remotekey.NewSigner(ctx, uri, remotekey.Options{
		PKCS11Module: os.Getenv("COSIGN_PKCS11_MODULE_PATH"),
		PIN: func(string) ([]byte, error) {
			if pin, set := os.LookupEnv("COSIGN_PKCS11_PIN"); set || passwordFile == "" {
				return []byte(pin), nil
			}
			pin, err := readPassword(passwordFile)
			return []byte(pin), err
		},
	})
}

// newAuthority makes an authority with a key; nil: with a new one.
func newAuthority(key *remotekey.Signer, trustDomain string) (*ca.Authority, error) {
	if key == nil {
		return ca.New(trustDomain, time.Now())
	}
	return ca.NewWith(key, trustDomain, time.Now())
}

func closeCAKey(key *remotekey.Signer) {
	if key != nil {
		_ = key.Close() // what was signed is signed
	}
}
