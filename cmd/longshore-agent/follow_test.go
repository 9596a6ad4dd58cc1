package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/signing/trust"
)

// TestOneErrorHasOneCode: an error of several kinds has the same code each time, the worst of them.
func TestOneErrorHasOneCode(t *testing.T) {
	err := fmt.Errorf("follow: %w", errors.Join(trust.ErrUnreachable, trust.ErrUnusable, trust.ErrNotNext, trust.ErrOlder))
	for range 64 {
		if got := codes.Of(withTrustCode(err)); got != codes.TrustRollback {
			t.Fatalf("code = %s, want %s", got, codes.TrustRollback)
		}
	}
	if err := errors.New("other"); withTrustCode(err) != err || withTrustCode(nil) != nil {
		t.Error("another error has got a code")
	}
}
