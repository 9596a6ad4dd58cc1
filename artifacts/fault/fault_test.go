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

func TestSummary(t *testing.T) {
	deep := fmt.Errorf("verify x@sha256:66b5: %w: not signed by release, but by key sha256:9c73", fault.ErrBadSignature)
	err := fmt.Errorf("press-07: %w", fault.WithSummary(deep, "x is signed by key sha256:9c73, not by release"))
	if got, want := fault.Summary(err), "press-07: x is signed by key sha256:9c73, not by release"; got != want {
		t.Errorf("Summary = %q, want %q", got, want)
	}
	if got, want := err.Error(), "press-07: verify x@sha256:66b5: signature invalid: not signed by release, but by key sha256:9c73"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("%v is no ErrBadSignature", err)
	}
	for _, plain := range []error{nil, errors.New("x")} {
		want := ""
		if plain != nil {
			want = plain.Error()
		}
		if got := fault.Summary(plain); got != want {
			t.Errorf("Summary(%v) = %q, want %q", plain, got, want)
		}
	}
	if err := fault.WithSummary(nil, "x"); err != nil {
		t.Errorf("WithSummary(nil) = %v, want nil", err)
	}
}
