// Package deadline bounds calls to containerd, and creates contexts for calls that must not end with their caller.
package deadline

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

// Limits of calls about tasks. containerd waits for shims without a limit; a shim that hangs must not block a container for as long as
// a whole step may take.
const (
	startLimit    = time.Minute // to create or start one: runc and its hooks
	answerTimeout = 30 * time.Second
	// shimMargin is how long before a deadline a shim may treat it as passed.
	shimMargin = time.Second
)

// taskService is the beginning of the methods that are bounded here.
const taskService = "/containerd.services.tasks.v1.Tasks/"

// answerLimit is the longest time of a call; 0: only its context limits it.
func answerLimit(method string) time.Duration {
	name, ok := strings.CutPrefix(method, taskService)
	switch {
	case !ok, name == "Wait":
		return 0
	case name == "Create", name == "Start":
		return startLimit
	}
	return answerTimeout
}

// Tasks is a grpc.UnaryClientInterceptor that bounds calls about tasks.
func Tasks(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !strings.HasPrefix(method, taskService) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	call := ctx
	if limit := answerLimit(method); limit > 0 {
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err := invoke(call, method, req, reply, cc, opts...)
	if err == nil {
		return nil
	}
	// containerd and the shim get the deadline with the call and may end it first. Their error is text then, unknown to
	// errors.Is: containerd names the deadline, the shim reports that it killed runc. A server that ends the stream first sends
	// a code only.
	end, name, says := ctx.Err(), strings.TrimPrefix(method, taskService), func(s string) bool { return strings.Contains(err.Error(), s) }
	late := status.Code(err) == codes.DeadlineExceeded || says(context.DeadlineExceeded.Error())
	switch {
	case end == context.Canceled && says(end.Error()), end == context.DeadlineExceeded && late && name == "Wait": // not an error of containerd
		return status.FromContextError(end).Err()
	case end == nil && call.Err() != nil, late, says("signal: killed") && endsSoon(call):
		return status.Errorf(codes.DeadlineExceeded, "containerd did not answer %q in time: containerd, runc or the disk is slow", name)
	}
	return err
}

// endsSoon reports whether a context ends within shimNotices.
func endsSoon(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	if !ok {
		return false
	}
	soon, cancel := context.WithDeadline(ctx, end.Add(-shimMargin))
	defer cancel()
	return soon.Err() != nil
}

// CleanupLimit bounds cleaning up after the caller's context has ended.
const CleanupLimit = 10 * time.Second

// Detached returns a context for a call that must not be interrupted: it ends some time after ctx, and has no deadline that would be
// sent with the call. A shim applies such a deadline to itself and kills runc: a process that runc has just started in a container
// then has no owner.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if delay.For(longer, CleanupLimit) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// Finishing returns a context for a call that goes on for some time when ctx is cancelled. It keeps ctx's deadline.
func Finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := Detached(ctx)
	end, ok := ctx.Deadline()
	if !ok {
		return longer, cancel
	}
	longer, stop := context.WithDeadline(longer, end)
	return longer, func() { stop(); cancel() }
}

// ForCleanup returns a context to clean up in when ctx may have ended.
func ForCleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), CleanupLimit)
}
