package delay_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, stopped := time.Now(), errors.New("stopped")
		if err := delay.For(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("For returned %v after %v, want nil after an hour", err, time.Since(began))
		}
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { stop(stopped) })
		if err := delay.For(ctx, time.Hour); !errors.Is(err, stopped) || time.Since(began) != time.Hour+time.Minute {
			t.Errorf("For returned %v after %v, want the cause after a minute more", err, time.Since(began))
		}
	})
}
