// Package failure turns errors of containerd, its client library and registries into those of artifacts/fault.
package failure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// As makes err one of kind, keeping both in the chain. nil stays nil.
func As(kind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Message is the text of an error without the fault.ErrUnfit at its end: for a conflict, which adds it again.
func Message(err error) string {
	return strings.TrimSuffix(err.Error(), ": "+fault.ErrUnfit.Error())
}

// known are the sentinels that classify does not change.
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

// Classify turns an error of containerd into one of artifacts/fault.
func Classify(err error) error {
	switch {
	case err == nil || known(err):
		return err
	case DiskFull(err):
		return fault.WithHint(As(fault.ErrTemporary, noSpace{err}), "free some space on the device's disk; what runs was not touched")
	case errdefs.IsUnavailable(err):
		return fault.WithHint(As(fault.ErrTemporary, unavailable{err}), "is containerd running?")
	case errdefs.IsNotFound(err):
		return As(fault.ErrNotFound, err)
	case errdefs.IsAlreadyExists(err):
		return As(fault.ErrConflict, err)
	case errdefs.IsInvalidArgument(err):
		return As(fault.ErrInvalid, err)
	}
	return err
}

// DiskFull reports whether err is a full disk, also when containerd's API returned only the text of it.
func DiskFull(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error()))
}

// noSpace makes an error syscall.ENOSPC when containerd's API returned only the text of it, so that the agent does not treat it as an
// unreachable registry.
type noSpace struct{ error }

func (e noSpace) Unwrap() error { return e.error }

func (noSpace) Is(target error) bool { return target == syscall.ENOSPC }

// unavailable is the error of a containerd that does not answer; it replaces the client library's text.
type unavailable struct{ error }

func (e unavailable) Unwrap() error { return e.error }

func (e unavailable) Error() string {
	text := e.error.Error()
	if _, at, ok := strings.Cut(text, "dial unix://"); ok {
		socket, _, _ := strings.Cut(at, ":")
		return "containerd does not answer at " + socket
	}
	return text
}

// ErrPermanent marks an error of an image's own bytes.
var ErrPermanent = errors.New("the image itself is wrong")

// Permanent adds the mark to an error.
func Permanent(err error) error { return wrong{err} }

type wrong struct{ error }

func (e wrong) Unwrap() []error { return []error{e.error, ErrPermanent} }

// ClassifyUnpack marks the errors of layers that cannot be unpacked on any device.
func ClassifyUnpack(err error) error {
	if err == nil || known(err) || DiskFull(err) || errdefs.IsUnavailable(err) {
		return Classify(err)
	}
	for _, s := range []string{
		"wrong diff id", "archive/tar:", "gzip:", "flate:", "zlib:", "magic number mismatch", "invalid input:", "unexpected EOF",
		"unhandled tar header", "too many levels of symbolic links",
	} {
		if strings.Contains(err.Error(), s) {
			return Permanent(As(fault.ErrInvalid, err))
		}
	}
	return Classify(err)
}
