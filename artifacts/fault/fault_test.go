package fault_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestHintAndDelaySurviveWrapping(t *testing.T) {
	inner := fault.WithRetryAfter(fmt.Errorf("get x: %w", fault.ErrTemporary), 3*time.Second)
	err := fmt.Errorf("pull: %w", fault.WithHint(inner, "try later"))
	if !fault.Retryable(err) || !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Retryable(%v) = false, want true", err)
	}
	if got := fault.Hint(err); got != "try later" {
		t.Errorf("Hint = %q, want %q", got, "try later")
	}
	if got, ok := fault.RetryAfter(err); !ok || got != 3*time.Second {
		t.Errorf("RetryAfter = %v, %v, want 3s, true", got, ok)
	}
	if got := err.Error(); got != "pull: get x: temporarily unavailable" {
		t.Errorf("Error() = %q", got)
	}
}

func TestNilStaysNil(t *testing.T) {
	if err := fault.WithHint(nil, "x"); err != nil {
		t.Errorf("WithHint(nil) = %v, want nil", err)
	}
	if err := fault.WithRetryAfter(nil, time.Second); err != nil {
		t.Errorf("WithRetryAfter(nil) = %v, want nil", err)
	}
	if got := fault.Hint(nil); got != "" {
		t.Errorf("Hint(nil) = %q, want empty", got)
	}
	if _, ok := fault.RetryAfter(errors.New("x")); ok {
		t.Error("RetryAfter of a plain error = true, want false")
	}
}
