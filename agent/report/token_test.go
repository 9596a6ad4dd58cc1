//go:build cgo

package report

import (
	"crypto"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
	"github.com/longshore-dev/longshore/testenv"
)

// A call that hangs in the token holds up its caller for a limited time, and nobody else; when it returns, the token is good again.
func TestSilentToken(t *testing.T) {
	soft := testenv.SoftHSM(t)
	pin := filepath.Join(t.TempDir(), "token.pin")
	if err := os.WriteFile(pin, []byte(soft.PIN), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := token.Parse(soft.URI("device") + "&pin-source=" + pin)
	if err != nil {
		t.Fatal(err)
	}
	defer func(limit time.Duration) { tokens.limit = limit }(tokens.limit)
	tokens.limit = 2 * time.Second
	answers := make(chan struct{})
	use := func(hang bool) error {
		_, err := useToken(at, func(*token.Token, crypto.Signer, error) (int, error) {
			if hang {
				<-answers
			}
			return 0, nil
		})
		return err
	}
	if err := use(true); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("a call that hangs: %v", err)
	}
	tokens.limit = time.Hour
	for range 100 {
		if err := use(false); !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("a call while another one hangs: %v", err)
		}
	}
	close(answers)
	testenv.Eventually(t, time.Minute, "the token answers", func() error { return use(false) })
}
