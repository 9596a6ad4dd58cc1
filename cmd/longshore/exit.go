package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Exit codes. They are part of the interface: scripts branch on them.
const (
	codeOK           = 0
	codeDiffers      = 1   // for commands that compare
	codeUsage        = 2   // the command line, or a document or reference that it names, is not valid
	codeAuth         = 3   // not logged in, wrong password, or no right
	codeNotFound     = 4   // the place answered, and the thing is not there
	codeVerification = 5   // not signed, badly signed, or other bytes than named
	codeRefused      = 6   // a policy says no, or it would be a rollback or overwrite what is there
	codeOther        = 70  // none of the others: a full disk, a bug
	codeTemporary    = 75  // the same may work later
	codeInterrupted  = 130 // Ctrl-C
)

// exitCodes is what --help of every command ends with.
const exitCodes = "Exit codes: 0 done; 2 usage or an invalid document; 3 authentication; 4 not found; 5 verification;\n" +
	"6 refused by policy, rollback or conflict; 75 temporary, try again."

// usageError is a command line that cannot be understood.
type usageError struct {
	message string
	command string // for the hint; "" is the program
}

func (e *usageError) Error() string { return e.message }

func usagef(command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), command}
}

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	var usage *usageError
	switch {
	case err == nil:
		return codeOK
	case errors.As(err, &usage):
		return codeUsage
	case is(context.Canceled):
		return codeInterrupted
	case is(fault.ErrTemporary, context.DeadlineExceeded):
		return codeTemporary
	case is(fault.ErrUnsigned, fault.ErrBadSignature, fault.ErrDigestMismatch):
		return codeVerification
	case is(fault.ErrRejected, fault.ErrRollback, fault.ErrConflict, fault.ErrUnfit, fs.ErrExist):
		return codeRefused
	case is(fault.ErrUnauthenticated, fault.ErrDenied):
		return codeAuth
	case is(fault.ErrNotFound, fs.ErrNotExist):
		return codeNotFound
	case is(fault.ErrInvalid, fault.ErrUnsupported, fault.ErrTooLarge):
		return codeUsage
	default:
		return codeOther
	}
}

// showError writes an error in the one shape that there is: what happened, then what to do. The faults of a document
// stand by themselves, as compilers write them.
func showError(w io.Writer, err error) {
	var document *strict.Error
	var usage *usageError
	var several failures
	switch {
	case errors.As(err, &several):
		for _, err := range several {
			showError(w, err)
		}
		return
	case errors.As(err, &document):
		showFaults(w, document)
		return
	case errors.As(err, &usage):
		fmt.Fprintf(w, "longshore: %s\n  hint: longshore %s--help\n", usage.message, strings.TrimPrefix(usage.command+" ", " "))
		return
	}
	text := err.Error()
	if exitCode(err) == codeTemporary && !strings.Contains(text, fault.ErrTemporary.Error()) {
		text += " (temporary)"
	}
	fmt.Fprintf(w, "longshore: %s\n", text)
	if hint := fault.Hint(err); hint != "" {
		fmt.Fprintf(w, "  hint: %s\n", hint)
	}
}

func showFaults(w io.Writer, e *strict.Error) {
	for _, f := range e.Faults {
		one := strict.Error{File: e.File, Faults: []strict.Fault{f}}
		fmt.Fprintln(w, one.Error())
		if f.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", f.Hint)
		}
	}
}
