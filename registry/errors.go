package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Operations of an [Error] that read one thing: if a registry does not have it, that is all to say.
const (
	opResolve  = "resolve"
	opManifest = "fetch manifest"
	opBlob     = "fetch blob"
	opRead     = "read"
	opTags     = "list tags"
)

// Operations of an [Error] that write: what is missing then is the place.
const (
	opPush         = "push"
	opPushBlob     = "push blob"
	opPushManifest = "push manifest"
	opPushReferrer = "push referrer"
	opCopyBlob     = "copy blob"
)

var (
	reads  = []string{opResolve, opManifest, opBlob, opRead, opTags}
	writes = []string{opPush, opPushBlob, opPushManifest, opPushReferrer, opCopyBlob}
)

// Error has the operation, its object, and the cause. It wraps one sentinel of artifacts/fault, or a context's
// error.
type Error struct {
	Op        string // "resolve", "push blob"
	Reference string // host/path with tag or digest, or a layout's path
	err       error
}

// Error says what is missing where a registry has answered that it does not have it, and otherwise what was tried.
func (e *Error) Error() string {
	more, bare := strings.CutPrefix(e.err.Error(), fault.ErrNotFound.Error())
	what := ""
	switch ref, missing := e.missing(); {
	case !bare || !missing || !slices.Contains(reads, e.Op):
		return e.Op + " " + e.Reference + ": " + e.err.Error()
	case ref.Target() == "":
		what = "repository "
	}
	return "there is no " + what + e.Reference + more
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// missing is the reference that a registry does not have; false for all other errors.
func (e *Error) missing() (Reference, bool) {
	ref, err := ParseReference(e.Reference)
	return ref, err == nil && ref.Scheme != SchemeLayout && e.Op != "open" && errors.Is(e.err, fault.ErrNotFound) && !errors.Is(e.err, fault.ErrTemporary)
}

// Look is a hint for finding a name that a registry does not have; "" for every other error. It is for callers without a more
// specific hint: a hint of the error itself takes precedence.
func (e *Error) Look() string {
	ref, missing := e.missing()
	switch {
	case !missing:
		return ""
	case slices.Contains(writes, e.Op):
		return "are the host and the path right? some registries take a push only into a project or repository that was created before"
	case ref.Digest != "":
		return "is that the repository? registries remove what no tag names"
	case ref.Tag != "":
		return "are the repository and the tag right? the registry has nothing under that name"
	}
	return "is the path right? a registry knows a repository from the first push to it"
}

// newError wraps err once: an inner *Error keeps its own operation and reference.
func newError(op, reference string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return &Error{op, reference, classify(err)}
}

// sentinels are the errors that classify does not change.
func classified(err error) bool {
	if fault.Distrusted(err) {
		return true
	}
	for _, s := range []error{
		fault.ErrTemporary, fault.ErrNotFound, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrDigestMismatch,
		fault.ErrTooLarge, fault.ErrUnsupported, fault.ErrInvalid, fault.ErrConflict,
		fault.ErrRollback, fault.ErrUnfit, context.Canceled,
	} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// classify gives err its sentinel and, where a person can do something, a hint. An unknown error is treated as one of the
// connection and is temporary, because nothing is known about the requested object.
func classify(err error) error {
	if classified(err) {
		return err
	}
	var (
		response *errcode.ErrorResponse
		link     *url.Error
	)
	switch {
	case errors.As(err, &response):
		var first errcode.Error
		if len(response.Errors) > 0 {
			first = response.Errors[0]
		}
		return wire.StatusError(response.Method, response.StatusCode, first.Code, first.Message)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return fault.WithHint(fmt.Errorf("it asks for a user name and password, none are known: %w", fault.ErrUnauthenticated),
			"log in, or set LONGSHORE_USERNAME and LONGSHORE_PASSWORD")
	case mismatched(err):
		return fmt.Errorf("it answers for another digest: %w", fault.ErrDigestMismatch)
	case errors.Is(err, errdef.ErrTooManyPages):
		return fmt.Errorf("a list of too many pages: %w", fault.ErrTooLarge)
	case errors.Is(err, http.ErrNoLocation):
		return fmt.Errorf("an upload without a place: %w", fault.ErrUnsupported)
	case errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("%w", fault.ErrNotFound)
	case errors.Is(err, http.ErrSchemeMismatch), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fault.WithHint(fmt.Errorf("it speaks plain HTTP, HTTPS was expected: %w", fault.ErrUnsupported),
			"if that is meant to be so, allow it explicitly with --plain-http")
	}
	if tlsErr := classifyTLS(err); tlsErr != nil {
		return tlsErr
	}
	if strings.Contains(err.Error(), "but registry was contacted over https") {
		return fault.WithHint(fmt.Errorf("its token server is named without TLS, and gets no credentials: %w", fault.ErrUnauthenticated),
			"is it the right registry? its token server has to be https too")
	}
	if strings.Contains(err.Error(), "bearer realm") {
		return fault.WithHint(fmt.Errorf("its token server is at an address that credentials are not sent to: %w", fault.ErrUnauthenticated),
			"a token server on a private address has to share the registry's host name")
	}
	if strings.Contains(err.Error(), "blob upload Location") {
		return fault.WithHint(fmt.Errorf("it wants an upload ended at another host or without TLS: %w", fault.ErrDenied),
			"is the registry told its public address, and is it the right registry?")
	}
	if errors.As(err, &link) {
		err = link.Err // without the URL, which may contain secrets
	}
	if dialErr := classifyDial(err); dialErr != nil {
		return dialErr
	}
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		return fault.NoAnswer(err)
	}
	return fmt.Errorf("%s: %w", wire.Clean(err.Error()), fault.ErrTemporary)
}

// mismatched reports whether an error of oras-go means that the response is for another digest than the requested one.
func mismatched(err error) bool { return strings.Contains(err.Error(), "digest mismatch in ") }

// classifyDial recognises errors of the connection to the registry, its proxy or its mirror. It returns nil for
// all others.
func classifyDial(err error) error {
	var (
		name   *net.DNSError
		dial   *net.OpError
		number syscall.Errno
	)
	switch {
	case errors.As(err, &name):
		return fault.WithHint(fmt.Errorf("look up %s: %s: %w", wire.Clean(name.Name), wire.Clean(name.Err), fault.ErrTemporary),
			"is the host's name right, and does this machine have a name server?")
	case !errors.As(err, &dial) || dial.Op != "dial" || dial.Addr == nil:
		return nil
	case dial.Timeout() && !errors.As(dial.Err, &number):
		return fmt.Errorf("connect to %s: %w", dial.Addr, fault.NoAnswer(err))
	case errors.As(dial.Err, &number):
		return fault.WithHint(fmt.Errorf("connect to %s: %w: %w", dial.Addr, number, fault.ErrTemporary), "is it the right address, and does the registry run there?")
	}
	return nil
}

// classifyTLS recognises that one side does not accept the other's certificate. It returns nil for all other errors.
func classifyTLS(err error) error {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		alert     *net.OpError
	)
	switch {
	case errors.As(err, &authority):
		return fault.WithHint(fmt.Errorf("its certificate is signed by an unknown authority: %w", fault.ErrUnauthenticated),
			"name the authority with --ca-file, or put it into the host's hosts.toml")
	case errors.As(err, &hostname):
		return fault.WithHint(fmt.Errorf("%s: %w", wire.Clean(strings.TrimPrefix(hostname.Error(), "x509: ")), fault.ErrUnauthenticated),
			"use a name that the certificate is for; is it the right registry?")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fault.WithHint(fmt.Errorf("its certificate has expired or is not yet valid%s: %w", validity(&invalid), fault.ErrUnauthenticated),
			"is this machine's clock right?")
	case errors.As(err, &verify):
		return fmt.Errorf("%s: %w", wire.Clean(verify.Err.Error()), fault.ErrUnauthenticated)
	case errors.As(err, &alert) && alert.Op == wire.RemoteAlert:
		return fault.WithHint(fmt.Errorf("it ended the TLS handshake (%s): %w", wire.Clean(alert.Err.Error()), fault.ErrUnauthenticated),
			"does it ask for a client certificate? see --cert-file and --key-file")
	}
	return nil
}

// validity describes the validity period of a certificate.
func validity(e *x509.CertificateInvalidError) string {
	if e.Cert == nil {
		return ""
	}
	return fmt.Sprintf(" (valid from %s to %s)", e.Cert.NotBefore.UTC().Format(time.DateOnly), e.Cert.NotAfter.UTC().Format(time.DateOnly))
}
