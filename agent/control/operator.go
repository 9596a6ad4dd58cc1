package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxDecision bounds the body of a request that decides something.
const maxDecision = 16 << 10

type (
	// Decision is the body of POST /v1/decisions. Who decides is not in it: the kernel says it.
	Decision = agent.DecisionRequest
	// Rollback is the body of POST /v1/rollback.
	Rollback = agent.RollbackRequest
)

// Operator is what the people at a device may ask and decide: nothing of it runs a program, or shows what an application writes.
type Operator interface {
	Status() status.Status
	Sync(ctx context.Context) (status.SyncResult, error)
	Changes(ctx context.Context) ([]status.Change, error)
	Decide(ctx context.Context, r agent.DecisionRequest) (status.Change, error)
	RollBack(ctx context.Context, r agent.RollbackRequest) (status.Hold, error)
	Release(ctx context.Context, by, via string) (status.Hold, error)
}

// redacted is an Operator without the output of containers in its error messages.
type redacted struct{ Operator }

func (d redacted) Status() status.Status { return d.Operator.Status().WithoutOutput() }

func (d redacted) Sync(ctx context.Context) (status.SyncResult, error) {
	r, err := d.Operator.Sync(ctx)
	r.Message = workload.WithoutOutput(r.Message)
	return r, err
}

// operatorRoutes adds what is answered at both sockets.
func operatorRoutes(handle func(pattern string, f http.HandlerFunc), d Operator) {
	handle("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, d.Status()) })
	handle("GET /v1/changes", answer(func(r *http.Request) (any, error) { return d.Changes(r.Context()) }))
	handle("POST /v1/decisions", answer(func(r *http.Request) (_ any, err error) {
		x := Decision{Via: viaCommand}
		if x.By, err = decided(r, &x); err != nil {
			return nil, err
		}
		return d.Decide(r.Context(), x)
	}))
	handle("POST /v1/rollback", answer(func(r *http.Request) (_ any, err error) {
		x := Rollback{Via: viaCommand}
		if x.By, err = decided(r, &x); err != nil {
			return nil, err
		}
		return d.RollBack(r.Context(), x)
	}))
	handle("DELETE /v1/hold", answer(func(r *http.Request) (any, error) {
		by, err := peer(r.Context())
		if err != nil {
			return nil, err
		}
		return d.Release(r.Context(), by, viaCommand)
	}))
}

const viaCommand = "command"

// answer writes what f returns: a result or an error.
func answer(f func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			refuse(w, err)
			return
		}
		reply(w, http.StatusOK, v)
	}
}

// decided reads the body of a request, strictly, and who sent it.
func decided(r *http.Request, v any) (by string, err error) {
	if by, err = peer(r.Context()); err != nil {
		return "", err
	}
	return by, readBody(r, maxDecision, v)
}

// readBody reads a body of one JSON object, strictly.
func readBody(r *http.Request, most int64, v any) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return fmt.Errorf("read the request: %w: %w", fault.ErrTemporary, err)
	}
	if int64(len(data)) > most {
		return fmt.Errorf("read the request: more than %d bytes: %w", most, fault.ErrTooLarge)
	}
	return decode(data, v)
}

type peerKey struct{}

// identify notes who is at the other end of a connection.
func identify(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var errCred error
	if err := raw.Control(func(fd uintptr) { cred, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || errCred != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred.Uid)
}

// peer names who asks: "user ana (1000)".
func peer(ctx context.Context) (string, error) {
	uid, ok := ctx.Value(peerKey{}).(uint32)
	if !ok {
		return "", fmt.Errorf("the kernel does not say who asks: %w", fault.ErrDenied)
	}
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("user %s (%s)", u.Username, id), nil
	}
	return "user " + id, nil
}

// decode reads one JSON object without unknown members.
func decode(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read the request: %w: %w", fault.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the request: text after the JSON object: %w", fault.ErrInvalid)
	}
	return nil
}
