package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// as makes err one of kind, keeping both in the chain. nil stays nil.
func as(kind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// known are the sentinels that classify leaves alone.
func known(err error) bool {
	for _, s := range []error{
		fault.ErrTemporary, fault.ErrNotFound, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrDigestMismatch,
		fault.ErrTooLarge, fault.ErrUnsupported, fault.ErrInvalid, fault.ErrConflict, fault.ErrRejected, fault.ErrUnfit,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// classify says in our words what containerd said in its own.
func classify(err error) error {
	switch {
	case err == nil || known(err):
		return err
	case diskFull(err):
		return fault.WithHint(as(fault.ErrTemporary, noSpace{err}), "free some space on the device's disk; what runs was not touched")
	case errdefs.IsUnavailable(err):
		return fault.WithHint(as(fault.ErrTemporary, err), "is containerd running?")
	case errdefs.IsNotFound(err):
		return as(fault.ErrNotFound, err)
	case errdefs.IsAlreadyExists(err):
		return as(fault.ErrConflict, err)
	case errdefs.IsInvalidArgument(err):
		return as(fault.ErrInvalid, err)
	}
	return err
}

// classifyRemote says in our words what went wrong between a registry and us.
func classifyRemote(err error) error {
	if err == nil || known(err) || diskFull(err) {
		return classify(err)
	}
	if strings.Contains(err.Error(), "byte manifest for ") { // "rejecting 5242880 byte manifest": the client library's limit
		return as(fault.ErrTooLarge, err)
	}
	var status remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &status) {
		switch code := status.StatusCode; {
		case code == http.StatusUnauthorized:
			return as(fault.ErrUnauthenticated, err)
		case code == http.StatusForbidden:
			return as(fault.ErrDenied, err)
		case code == http.StatusNotFound:
			return as(fault.ErrNotFound, err)
		case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
			return as(fault.ErrTemporary, err)
		}
		return err
	}
	var (
		netErr net.Error
		urlErr *url.Error
	)
	switch {
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return as(fault.ErrUnauthenticated, err)
	case errors.As(err, &netErr), errors.As(err, &urlErr), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNREFUSED):
		return as(fault.ErrTemporary, err)
	}
	return classify(err)
}

// diskFull also knows the error after it came through containerd's socket as text.
func diskFull(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error()))
}

// noSpace is a full disk, also where containerd's socket left only the text of it: the agent tells it from a registry that
// does not answer.
type noSpace struct{ error }

func (e noSpace) Unwrap() error { return e.error }

func (noSpace) Is(target error) bool { return target == syscall.ENOSPC }

// errHopeless marks what is wrong with an image's own bytes.
var errHopeless = errors.New("the image itself is wrong")

// hopeless adds the mark.
type hopeless struct{ error }

func (e hopeless) Unwrap() []error { return []error{e.error, errHopeless} }

// classifyUnpack knows what containerd says of layers that cannot be unpacked anywhere.
func classifyUnpack(err error) error {
	if err == nil || known(err) || diskFull(err) || errdefs.IsUnavailable(err) {
		return classify(err)
	}
	for _, s := range []string{
		"wrong diff id", "archive/tar:", "gzip:", "flate:", "zlib:", "magic number mismatch", "invalid input:", "unexpected EOF",
		"unhandled tar header", "too many levels of symbolic links",
	} {
		if strings.Contains(err.Error(), s) {
			return hopeless{as(fault.ErrInvalid, err)}
		}
	}
	return classify(err)
}
