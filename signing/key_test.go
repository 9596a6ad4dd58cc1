package signing_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/longshore-dev/longshore/signing"
)

func TestParsePublicKeyRefuses(t *testing.T) {
	private, public := pair()
	weak, err := os.ReadFile("testdata/rsa1024.pub")
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, data string }{
		{"empty", ""},
		{"text", "ssh-ed25519 AAAA"},
		{"private key", string(private)},
		{"two keys", string(public) + string(public)},
		{"text after", string(public) + "and more"},
		{"truncated", string(public[:len(public)/2])},
		{"certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
		{"garbage inside", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"},
		{"RSA 1024", string(weak)},
		{"too large", strings.Repeat("x", MaxKeyBytes+1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if k, err := ParsePublicKey("k", []byte(c.data)); err == nil {
				t.Errorf("ParsePublicKey = %+v, want an error", k)
			}
		})
	}
}
