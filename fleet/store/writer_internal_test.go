package store

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What a write finds out belongs to the writer until the write is durable: a caller that stops waiting gets none of it.
func TestACallerThatStopsWaiting(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	queued := func(n int) {
		for len(s.jobs) < n {
			runtime.Gosched()
		}
	}
	hold := func() (begun, end chan struct{}) {
		begun, end = make(chan struct{}), make(chan struct{})
		go func() {
			_ = s.write(context.Background(), func(context.Context, *writer) error {
				close(begun)
				<-end
				return nil
			})
		}()
		return begun, end
	}
	begun, end := hold()
	<-begun
	for name, call := range map[string]func(ctx context.Context) (any, error){
		"request": func(ctx context.Context) (any, error) {
			return s.RequestEnrollment(ctx, EnrollmentRequest{Key: "k", Device: "d", At: time.Unix(1, 0), About: []byte("{}")})
		},
		"approve": func(ctx context.Context) (any, error) {
			return s.ApproveEnrollment(ctx, Approval{Key: "l", Device: "e", Ahead: true, At: time.Unix(1, 0)})
		},
		"report": func(ctx context.Context) (any, error) {
			return s.PutStatus(ctx, Status{Device: "d", By: "d", Deployment: "x", State: "installed", Body: []byte("{}"), At: time.Unix(1, 0)})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var got any
		done := make(chan error)
		go func() {
			var err error
			got, err = call(ctx)
			done <- err
		}()
		queued(1)
		begun, next := hold()
		queued(2)
		close(end)
		<-begun // in the same transaction, after the call
		cancel()
		if err := <-done; !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("%s = %v, want a temporary error", name, err)
		}
		switch x := got.(type) {
		case Enrollment:
			if x.Key != "" || x.Device != "" {
				t.Errorf("%s: %+v of a write that is not durable", name, x)
			}
		case Outcome:
			if x != 0 {
				t.Errorf("%s: %v", name, x)
			}
		}
		end = next
	}
	close(end)
}
