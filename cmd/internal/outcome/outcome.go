// Package outcome is how our programs end: where an error becomes an exit code and lines on standard error. There is one
// such place, so that scripts and people find all programs alike. docs/exit-codes.md lists the codes.
package outcome

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Exit codes. They are part of the interface: scripts branch on them.
const (
	OK           = 0
	Differs      = 1   // for commands that compare
	Misused      = 2   // the command line, or a document or reference that it names, is not valid
	Auth         = 3   // not logged in, wrong password, or no right
	NotFound     = 4   // the place answered, and the thing is not there
	Verification = 5   // not signed, badly signed, or other bytes than named
	Refused      = 6   // a policy says no, or it would be a rollback or overwrite what is there
	Other        = 70  // none of the others: a full disk or registry, a bug
	Temporary    = 75  // the same may work later
	Interrupted  = 130 // Ctrl-C
)

// Help is what --help of our commands ends with.
const Help = "Exit codes: 0 done; 2 usage or an invalid document; 3 authentication; 4 not found; 5 verification;\n" +
	"6 refused: by a policy, as a rollback, or because of a conflict; 70 any other error; 75 temporary, try again."

// Usage is a command line that cannot be understood.
type Usage struct {
	Message string
	Command string // for the hint; "" is the program
}

func (e *Usage) Error() string { return e.Message }

// Usagef makes a [Usage].
func Usagef(command, format string, args ...any) error {
	return &Usage{fmt.Sprintf(format, args...), command}
}

// coded is an error whose exit code says more than its identity.
type coded struct {
	error
	code int
}

func (e *coded) Unwrap() error { return e.error }

// WithCode gives an error an exit code of its own.
func WithCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Told is an error that the command's result has told already: it has a code and no text.
func Told(code int) error { return &coded{errTold, code} }

var errTold = errors.New("told")

// Code is the exit code of an error; nil is [OK].
func Code(err error) int {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	var usage *Usage
	var own *coded
	switch {
	case err == nil:
		return OK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &usage):
		return Misused
	case is(context.Canceled):
		return Interrupted
	case full(err), is(syscall.EIO, syscall.EROFS, syscall.EFBIG):
		return Other // also where a part of the program would try again: who started it has to make room first, or to exchange the medium
	case is(fault.ErrTemporary, context.DeadlineExceeded):
		return Temporary
	case is(fault.ErrUnsigned, fault.ErrBadSignature, fault.ErrDigestMismatch, fault.ErrThreshold, fault.ErrKeyExpired, fault.ErrKeyRevoked,
		fault.ErrDigestRevoked, fault.ErrNoAttestation, fault.ErrBadAttestation):
		return Verification
	case is(fault.ErrRejected, fault.ErrRollback, fault.ErrConflict, fault.ErrUnfit, fs.ErrExist):
		return Refused
	case is(fault.ErrUnauthenticated, fault.ErrDenied, fs.ErrPermission):
		return Auth
	case is(fault.ErrNotFound, fs.ErrNotExist):
		return NotFound
	case is(fault.ErrInvalid, fault.ErrUnsupported, fault.ErrTooLarge, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG):
		return Misused
	}
	return Other
}

// Tell writes an error in the one shape that there is: what happened, then what to do. The faults of a document stand by
// themselves, as compilers write them; joined errors are told one by one.
func Tell(w io.Writer, program string, err error) {
	if several := joined(err); several != nil {
		for _, one := range several {
			Tell(w, program, one)
		}
		return
	}
	if errors.Is(err, errTold) {
		return
	}
	if document, ok := errors.AsType[*strict.Error](err); ok {
		for _, f := range document.Faults {
			one := strict.Error{File: document.File, Faults: []strict.Fault{f}}
			fmt.Fprintln(w, one.Error())
			tellHint(w, f.Hint)
		}
		return
	}
	if usage, ok := errors.AsType[*Usage](err); ok {
		fmt.Fprintf(w, "%s: %s\n", program, usage.Message)
		tellHint(w, cmp.Or(fault.Hint(err), strings.Join(strings.Fields(program+" "+usage.Command+" --help"), " ")))
		return
	}
	text := ended.Replace(fault.Summary(err))
	if Code(err) == Temporary && !strings.Contains(text, fault.ErrTemporary.Error()) {
		text += " (temporary)"
	}
	fmt.Fprintf(w, "%s: %s\n", program, text)
	var place interface{ Look() string } // [registry.Error]; not every program has a registry
	hint := fault.Hint(err)
	if hint == "" && errors.As(err, &place) {
		hint = place.Look()
	}
	tellHint(w, cmp.Or(hint, advice(err)))
}

// TellCauses writes all causes of an error, for --debug; nothing if Tell has written them.
func TellCauses(w io.Writer, err error) {
	if text := err.Error(); text != fault.Summary(err) {
		fmt.Fprintf(w, "  causes: %s\n", text)
	}
}

// advice is what to do about an error that knows no better.
func advice(err error) string {
	switch {
	case full(err):
		return "make room there: on the disk, or in the registry's storage or quota"
	case errors.Is(err, syscall.EIO):
		return "the disk or stick is damaged, or was removed: use another one, and run the same again"
	case errors.Is(err, syscall.EROFS):
		return "the disk or stick is mounted read-only, or write-protected: make it writable, or name another one"
	case errors.Is(err, syscall.EFBIG):
		return "the file system takes no file of this size, FAT for example none over 4 GiB: use another file system, or longshore export --volume-size 4GB"
	case errors.Is(err, fault.ErrBadSignature):
		return "see who signed it: longshore inspect REFERENCE; if that signer is right, name its public key, else have it signed again"
	case errors.Is(err, context.DeadlineExceeded):
		return fault.HintNoAnswer
	}
	return ""
}

func full(err error) bool {
	return errors.Is(err, fault.ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// ended says what the words of a context's end mean to who waited.
var ended = strings.NewReplacer(
	context.Canceled.Error(), "interrupted", "interrupt signal received", "interrupted", "terminated signal received", "interrupted",
	context.DeadlineExceeded.Error(), "no answer in time",
)

// joined are the parts of what [errors.Join] made; nil for every other error, also one that wraps several in a sentence.
func joined(err error) []error {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var texts []string
	for _, one := range several.Unwrap() {
		texts = append(texts, one.Error())
	}
	if strings.Join(texts, "\n") != err.Error() {
		return nil
	}
	return several.Unwrap()
}

func tellHint(w io.Writer, hint string) {
	if hint != "" {
		fmt.Fprintf(w, "  hint: %s\n", hint)
	}
}
