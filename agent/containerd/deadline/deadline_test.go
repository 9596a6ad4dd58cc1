package deadline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCallsAboutTasksEnd(t *testing.T) {
	const rest = 5 * time.Minute // of the caller
	tests := map[string]time.Duration{
		taskService + "Create":                    startLimit,
		taskService + "Start":                     startLimit,
		taskService + "Delete":                    answerTimeout,
		taskService + "Get":                       answerTimeout,
		taskService + "Wait":                      rest,
		"/containerd.services.diff.v1.Diff/Apply": rest,
	}
	for method, want := range tests {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), rest)
				defer cancel()
				hang := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					<-ctx.Done()
					return ctx.Err()
				}
				err := Tasks(ctx, method, nil, nil, nil, hang)
				if strings.HasPrefix(method, taskService) {
					err = errgrpc.ToNative(err)
				}
				if took := time.Since(began); took != want || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the call ended after %v with %v, want %v and a deadline", took, err, want)
				}
			})
		})
	}
}

// containerd is told when its client stops waiting; what it answers then is a text.
func TestCallsThatContainerdEndsAreDeadlines(t *testing.T) {
	for _, method := range []string{"Exec", "Wait"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				text := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					<-ctx.Done()
					return status.Error(codes.Unknown, "context deadline exceeded")
				}
				if err := errgrpc.ToNative(Tasks(ctx, taskService+method, nil, nil, nil, text)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the call ended with %v, want a deadline", err)
				}
			})
		})
	}
}

// A shim that got the limit with the call kills runc, and reports only that.
func TestCallsThatAShimEndsAreDeadlines(t *testing.T) {
	for name, rest := range map[string]time.Duration{"own limit": time.Hour, "limit of the caller": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), rest)
				defer cancel()
				text := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					end, _ := ctx.Deadline()
					<-time.After(time.Until(end) - 10*time.Millisecond)
					return status.Error(codes.Unknown, "failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error: signal: killed")
				}
				err := errgrpc.ToNative(Tasks(ctx, taskService+"Create", nil, nil, nil, text))
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "containerd, runc or the disk is slow") {
					t.Errorf("the call ended with %v, want a deadline and its cause", err)
				}
			})
		})
	}
	// What the client library makes of a server that resets the stream at its end of the limit.
	reset := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		return status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL")
	}
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := errgrpc.ToNative(Tasks(over, taskService+"Create", nil, nil, nil, reset)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "containerd, runc or the disk is slow") {
		t.Errorf("the call that was reset ended with %v, want a deadline and its cause", err)
	}
	killed := status.Error(codes.Unknown, "signal: killed")
	early := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return killed }
	if err := Tasks(t.Context(), taskService+"Create", nil, nil, nil, early); err != killed {
		t.Errorf("a call that had time left ended with %v", err)
	}
}

// A call that is to end well goes on for some time after the caller has given up, and keeps the caller's deadline.
func TestFinishing(t *testing.T) {
	for name, tc := range map[string]struct {
		limit, cancel, want time.Duration
		err                 error
	}{
		"cancelled":                      {time.Hour, time.Second, time.Second + CleanupLimit, context.Canceled},
		"deadline":                       {time.Minute, time.Hour, time.Minute, context.DeadlineExceeded},
		"cancelled just before deadline": {time.Minute, time.Minute - time.Second, time.Minute, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, end := context.WithTimeout(t.Context(), tc.limit)
				defer end()
				defer time.AfterFunc(tc.cancel, end).Stop()
				longer, stop := Finishing(ctx)
				defer stop()
				<-longer.Done()
				if took := time.Since(began); took != tc.want || longer.Err() != tc.err {
					t.Errorf("ended after %v with %v, want %v with %v", took, longer.Err(), tc.want, tc.err)
				}
			})
		})
	}
}
