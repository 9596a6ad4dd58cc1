package token

import (
	"errors"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// A call that hangs in the token holds up its caller for a limited time, and nobody else. What it returns at last is closed before the next
// call.
func TestSilentToken(t *testing.T) {
	for name, failure := range map[string]error{"answers late": nil, "fails late": errors.New("device removed")} {
		t.Run(name, func(t *testing.T) { silent(t, failure) })
	}
}

func silent(t *testing.T, failure error) {
	answers, late := make(chan struct{}), 0
	use := func(limit time.Duration, hang bool) error {
		_, err := Call(URI{}, limit, func() (int, error) {
			if hang {
				<-answers
				return 7, failure
			}
			return 7, nil
		}, func(n int) { late += n })
		return err
	}
	if err := use(time.Millisecond, true); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("a call that hangs: %v", err)
	}
	for range 100 {
		if err := use(time.Hour, false); !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("a call while another one hangs: %v", err)
		}
	}
	close(answers)
	testenv.Eventually(t, time.Minute, "the token answers", func() error { return use(time.Hour, false) })
	if late != 7 {
		t.Errorf("what came too late: %d", late)
	}
}
