package containerd

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

// bounded ends calls about tasks that containerd does not answer.
func bounded(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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
	// It is told of the caller's own limit too, and what it says then may be a text that no errors.Is knows.
	if end := ctx.Err(); err != nil && end != nil && strings.Contains(err.Error(), end.Error()) {
		return status.FromContextError(end).Err()
	}
	// containerd is told of the limit, and may be the first to notice: 1.6 says so in a text only.
	if err != nil && ctx.Err() == nil && (call.Err() != nil || strings.Contains(err.Error(), context.DeadlineExceeded.Error())) {
		return status.Errorf(codes.DeadlineExceeded, "containerd did not answer %q in time", strings.TrimPrefix(method, taskService))
	}
	return err
}
