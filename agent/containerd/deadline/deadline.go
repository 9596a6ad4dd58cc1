// Package deadline bounds calls to containerd, and makes contexts for those that must not be cut off with their caller.
package deadline

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// How long containerd may take to answer what is asked of a task. It waits for shims without an end of its own; a shim that
// hangs must not hold a container for as long as a whole step may take.
const (
	taskBegins  = time.Minute // to make or start one: runc, and hooks of others
	taskAnswers = 30 * time.Second
	// shimNotices is how long before its end a shim may take a limit for over.
	shimNotices = time.Second
)

// taskService is the beginning of the methods that are bounded here.
const taskService = "/containerd.services.tasks.v1.Tasks/"

// answerLimit is how long a call may take, 0: as long as its context lets it.
func answerLimit(method string) time.Duration {
	name, ok := strings.CutPrefix(method, taskService)
	switch {
	case !ok, name == "Wait":
		return 0
	case name == "Create", name == "Start":
		return taskBegins
	}
	return taskAnswers
}

// Tasks is a grpc.UnaryClientInterceptor that ends calls about tasks that containerd does not answer.
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
	// containerd and the shim get the limit with the call and may end it first. What they say is a text then, that no
	// errors.Is knows: containerd says whose limit it was, the shim kills runc and says that. A server that ends the stream first
	// says it with a code alone.
	end, name, says := ctx.Err(), strings.TrimPrefix(method, taskService), func(s string) bool { return strings.Contains(err.Error(), s) }
	late := status.Code(err) == codes.DeadlineExceeded || says(context.DeadlineExceeded.Error())
	switch {
	case end == context.Canceled && says(end.Error()), end == context.DeadlineExceeded && late && name == "Wait": // no fault of containerd
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
	soon, cancel := context.WithDeadline(ctx, end.Add(-shimNotices))
	defer cancel()
	return soon.Err() != nil
}

// Cleanup bounds what is undone after the caller's context has ended.
const Cleanup = 10 * time.Second

// Outlast is a context for a call that must not be cut off in the middle: it ends some time after ctx does, and has no deadline that
// would travel with the call. A shim takes that for its own, and kills runc where it is: a process that runc has just begun in a
// container is then nobody's.
func Outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if Rest(longer, Cleanup) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// After is a context to clean up in when ctx may have ended.
func After(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), Cleanup)
}

// Rest waits for d; an error is ctx's.
func Rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
