// Package fault names the ways in which work on an artifact goes wrong.
//
// It is the vocabulary that the rooms share without knowing each other: the registry client, the signature verifier and
// the document parsers wrap one of these sentinels, the agent and the programs branch on it with [errors.Is]. A sentinel
// says what went wrong; the typed error around it says where; [Summary] says it in one sentence; [Hint] and [RetryAfter] say
// what follows.
package fault

import (
	"errors"
	"strings"
	"time"
)

// What went wrong. Every error that crosses a room's border wraps exactly one of these, or none when it is a bug.
var (
	// ErrTemporary: nothing is known to be wrong with the thing asked for; the same call may work later (no route,
	// timeouts, 429, 5xx).
	ErrTemporary = errors.New("temporarily unavailable")
	// ErrFull: there is no room left, on this disk or at a registry. It is ErrTemporary, too, to what tries again by itself
	// until there is room.
	ErrFull error = full{}
	// ErrNotFound: the place answered, and the thing is not there.
	ErrNotFound = errors.New("not found")
	// ErrUnauthenticated: no or wrong credentials (401).
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrDenied: the credentials are known and do not suffice (403).
	ErrDenied = errors.New("denied")
	// ErrDigestMismatch: bytes arrived that are not the bytes that were asked for.
	ErrDigestMismatch = errors.New("digest mismatch")
	// ErrTooLarge: more bytes than the limit for this kind of thing.
	ErrTooLarge = errors.New("too large")
	// ErrUnsupported: a media type, artifact type, algorithm or field that cannot be honoured here.
	ErrUnsupported = errors.New("unsupported")
	// ErrInvalid: a document, reference or archive that breaks its format.
	ErrInvalid = errors.New("invalid")
	// ErrConfig: a file of this machine's own configuration cannot be used; nothing is known of the thing asked for. It is
	// ErrInvalid, too.
	ErrConfig error = config{}
	// ErrConflict: it exists already with other content (an immutable tag, a generation).
	ErrConflict = errors.New("conflict")
	// ErrUnsigned: the place answered, and there is no signature.
	ErrUnsigned = errors.New("not signed")
	// ErrBadSignature: signatures are there and none satisfies the keys.
	ErrBadSignature = errors.New("signature invalid")
	// ErrThreshold: there are good signatures, and the policy asks for more signers.
	ErrThreshold = errors.New("too few signers")
	// ErrKeyExpired: a signature that would suffice is by a key outside the time in which it is trusted.
	ErrKeyExpired = errors.New("key expired or not yet valid")
	// ErrKeyRevoked: a signature that would suffice is by a key that the policy revokes.
	ErrKeyRevoked = errors.New("key revoked")
	// ErrDigestRevoked: the policy revokes the content itself, with any signature.
	ErrDigestRevoked = errors.New("digest revoked")
	// ErrNoAttestation: the place answered, and there is no statement of a kind that the policy asks for.
	ErrNoAttestation = errors.New("attestation missing")
	// ErrBadAttestation: such statements are there and none satisfies the policy.
	ErrBadAttestation = errors.New("attestation invalid")
	// ErrRejected: the policy says no, or says nothing.
	ErrRejected = errors.New("rejected by policy")
	// ErrRollback: older than, or another content for, a generation that was accepted already.
	ErrRollback = errors.New("rollback refused")
	// ErrUnfit: this device does not meet what the deployment asks for.
	ErrUnfit = errors.New("device does not fit")
)

type config struct{}

func (config) Error() string        { return "configuration invalid" }
func (config) Is(target error) bool { return target == ErrInvalid }

type full struct{}

func (full) Error() string        { return "no room left" }
func (full) Is(target error) bool { return target == ErrTemporary }

// Distrusted reports whether the content was checked and may not be used. Errors that say that it could not be checked do not count.
func Distrusted(err error) bool {
	if Retryable(err) {
		return false
	}
	for _, kind := range []error{
		ErrUnsigned, ErrBadSignature, ErrThreshold, ErrKeyExpired, ErrKeyRevoked, ErrDigestRevoked, ErrNoAttestation, ErrBadAttestation, ErrRejected,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Retryable reports whether the same call may work later with nothing changed.
func Retryable(err error) bool { return errors.Is(err, ErrTemporary) }

// HintNoAnswer is the hint of [NoAnswer].
const HintNoAnswer = "check that the server runs and that no firewall blocks it; if the command has --timeout, use a longer one"

// NoAnswer replaces a timeout by words that do not depend on the layer that noticed it. It wraps cause and ErrTemporary.
func NoAnswer(cause error) error { return WithHint(&late{cause}, HintNoAnswer) }

type late struct{ cause error }

func (l *late) Error() string   { return "no answer in time: " + ErrTemporary.Error() }
func (l *late) Unwrap() []error { return []error{ErrTemporary, l.cause} }

// with is an error with a note of a kind T attached, which does not change its text.
type with[T any] struct {
	error
	note T
}

func (w *with[T]) Unwrap() error { return w.error }

// The kinds of notes.
type (
	hint     string
	sentence string
	delay    time.Duration
	steady   struct{}
	final    struct{}
)

// attach returns nil for a nil err.
func attach[T any](err error, note T) error {
	if err == nil {
		return nil
	}
	return &with[T]{err, note}
}

// outermost finds the first error in err's tree that has a note of a kind; false: none has.
func outermost[T any](err error) (*with[T], bool) {
	w := &with[T]{}
	ok := errors.As(err, &w)
	return w, ok
}

// WithHint attaches what a person can do next, one sentence, to err. A nil err stays nil.
func WithHint(err error, text string) error { return attach(err, hint(text)) }

// Hint returns the outermost hint of err, or "".
func Hint(err error) string {
	h, _ := outermost[hint](err)
	return string(h.note)
}

// WithSummary attaches to err what it means, one sentence, for people who do not need the chain of causes. A nil err stays
// nil.
func WithSummary(err error, text string) error { return attach(err, sentence(text)) }

// Summary returns the text of err with the outermost summary in place of the causes that it sums up; "" for nil.
func Summary(err error) string {
	if err == nil {
		return ""
	}
	s, ok := outermost[sentence](err)
	if !ok {
		return err.Error()
	}
	return strings.Replace(err.Error(), s.Error(), string(s.note), 1)
}

// WithRetryAfter attaches the delay that a server asked for (RFC 9110 section 10.2.3). A nil err stays nil.
func WithRetryAfter(err error, after time.Duration) error { return attach(err, delay(after)) }

// RetryAfter returns the delay that a server asked for; false when it asked for none.
func RetryAfter(err error) (time.Duration, bool) {
	d, ok := outermost[delay](err)
	return time.Duration(d.note), ok
}

// WithSteady says of err that the delay of [WithRetryAfter] is meant for each try: the pause does not grow. A nil err stays nil.
func WithSteady(err error) error { return attach(err, steady{}) }

// Steady reports whether a server asked for the same delay before each try.
func Steady(err error) bool {
	_, ok := outermost[steady](err)
	return ok
}

// WithNoRetry says of err that a server expects the same request to fail again. A nil err stays nil.
func WithNoRetry(err error) error { return attach(err, final{}) }

// NoRetry reports whether a server said that the same request fails again.
func NoRetry(err error) bool {
	_, ok := outermost[final](err)
	return ok
}
