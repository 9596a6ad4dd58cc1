package outcome_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

func TestCodeAndText(t *testing.T) {
	document := &strict.Error{File: "agent.yaml", Faults: []strict.Fault{
		{Line: 9, Column: 3, Path: "pol", Message: "unknown key", Hint: "did you mean poll?"},
		{Line: 1, Column: 1, Message: "no device"},
	}}
	for _, tc := range []struct {
		name string
		err  error
		code int
		text string
	}{
		{"usage", outcome.Usagef("state push", "no device"), outcome.Misused, "x: no device\n  hint: x state push --help\n"},
		{"usage of the program", outcome.Usagef("", "what?"), outcome.Misused, "x: what?\n  hint: x --help\n"},
		{"document", fmt.Errorf("read: %w", document), outcome.Misused, "agent.yaml:9:3: pol: unknown key\n  hint: did you mean poll?\nagent.yaml:1:1: no device\n"},
		{"hint", fault.WithHint(fmt.Errorf("push a: %w", fault.ErrDenied), "log in"), outcome.Auth, "x: push a: denied\n  hint: log in\n"},
		{"usage with a hint", fault.WithHint(outcome.Usagef("serve", "no password"), "give one"), outcome.Misused, "x: no password\n  hint: give one\n"},
		{"not logged in", fault.ErrUnauthenticated, outcome.Auth, "x: not authenticated\n"},
		{"not found", fault.ErrNotFound, outcome.NotFound, "x: not found\n"},
		{"no file", fs.ErrNotExist, outcome.NotFound, "x: file does not exist\n"},
		{"unsigned", fault.ErrUnsigned, outcome.Verification, "x: not signed\n"},
		{"other bytes", fault.ErrDigestMismatch, outcome.Verification, "x: digest mismatch\n"},
		{"policy", fault.ErrRejected, outcome.Refused, "x: rejected by policy\n"},
		{"rollback", fault.ErrRollback, outcome.Refused, "x: rollback refused\n"},
		{"temporary", fmt.Errorf("get a: %w", context.DeadlineExceeded), outcome.Temporary, "x: get a: no answer in time (temporary)\n  hint: check that the server runs and that no firewall blocks it; if the command has --timeout, use a longer one\n"},
		{"told as temporary", fault.ErrTemporary, outcome.Temporary, "x: temporarily unavailable\n"},
		{"interrupted", fmt.Errorf("get a: %w", context.Canceled), outcome.Interrupted, "x: get a: interrupted\n"},
		{"interrupted by a signal", fmt.Errorf("get a: interrupt signal received%.0w", context.Canceled), outcome.Interrupted, "x: get a: interrupted\n"},
		{"a file for a directory", &fs.PathError{Op: "open", Path: "a/b", Err: syscall.ENOTDIR}, outcome.Misused, "x: open a/b: not a directory\n"},
		{"a directory for a file", &fs.PathError{Op: "read", Path: "a", Err: syscall.EISDIR}, outcome.Misused, "x: read a: is a directory\n"},
		{"unreadable", &fs.PathError{Op: "open", Path: "a", Err: syscall.EACCES}, outcome.Auth, "x: open a: permission denied\n"},
		{"its own", outcome.WithCode(errors.New("behind"), outcome.Differs), outcome.Differs, "x: behind\n"},
		{"told already", outcome.Told(outcome.Differs), outcome.Differs, ""},
		{"a sentence of two", fmt.Errorf("trust policy: %w: %w", document, fault.ErrRejected), outcome.Refused, "agent.yaml:9:3: pol: unknown key\n  hint: did you mean poll?\nagent.yaml:1:1: no device\n"},
		{"joined of one", errors.Join(fault.ErrNotFound), outcome.NotFound, "x: not found\n"},
		{"unfit", fault.ErrUnfit, outcome.Refused, "x: device does not fit\n"},
		{"exists", fs.ErrExist, outcome.Refused, "x: file already exists\n"},
		{"could not look", errors.Join(fault.ErrTemporary, fault.ErrBadSignature), outcome.Temporary, "x: temporarily unavailable\nx: signature invalid\n  hint: see who signed it: longshore inspect REFERENCE; if that signer is right, name its public key, else have it signed again\n"},
		{"other", errors.New("disk full"), outcome.Other, "x: disk full\n"},
		{"full disk", fmt.Errorf("put a: %w: %w", &fs.PathError{Op: "write", Path: "b", Err: syscall.ENOSPC}, fault.ErrTemporary), outcome.Other, "x: put a: write b: no space left on device: temporarily unavailable\n  hint: make room there: on the disk, or in the registry's storage or quota\n"},
		{"damaged stick", fmt.Errorf("push a: %w: %w", &fs.PathError{Op: "read", Path: "b", Err: syscall.EIO}, fault.ErrTemporary), outcome.Other, "x: push a: read b: input/output error: temporarily unavailable\n  hint: the disk or stick is damaged, or was removed: use another one, and run the same again\n"},
		{"write-protected stick", fmt.Errorf("a: %w: %w", &fs.PathError{Op: "open", Path: "b", Err: syscall.EROFS}, fault.ErrTemporary), outcome.Other, "x: a: open b: read-only file system: temporarily unavailable\n  hint: the disk or stick is mounted read-only, or write-protected: make it writable, or name another one\n"},
		{"large file", fmt.Errorf("a: %w: %w", &fs.PathError{Op: "write", Path: "b", Err: syscall.EFBIG}, fault.ErrTemporary), outcome.Other, "x: a: write b: file too large: temporarily unavailable\n  hint: the file system takes no file of this size, FAT for example none over 4 GiB: use another file system, or longshore export --volume-size 4GB\n"},
		{"full registry", fmt.Errorf("push a: 507: %w", fault.ErrFull), outcome.Other, "x: push a: 507: no room left\n  hint: make room there: on the disk, or in the registry's storage or quota\n"},
		{"several", errors.Join(fault.WithHint(fault.ErrNotFound, "look"), errors.New("b")), outcome.NotFound, "x: not found\n  hint: look\nx: b\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			outcome.Tell(&b, "x", tc.err)
			if got := outcome.Code(tc.err); got != tc.code || b.String() != tc.text {
				t.Errorf("Code, Tell = %d, %q, want %d, %q", got, b.String(), tc.code, tc.text)
			}
		})
	}
	if outcome.Code(nil) != outcome.OK || outcome.WithCode(nil, 1) != nil {
		t.Error("nil is an error")
	}
}

func TestCausesAreForDebugging(t *testing.T) {
	deep := fmt.Errorf("verify x: %w: not signed by release", fault.ErrBadSignature)
	err := fault.WithHint(fault.WithSummary(deep, "x is not signed by release"), "sign it")
	var told, causes bytes.Buffer
	outcome.Tell(&told, "longshore", err)
	outcome.TellCauses(&causes, err)
	if got, want := told.String(), "longshore: x is not signed by release\n  hint: sign it\n"; got != want {
		t.Errorf("Tell = %q, want %q", got, want)
	}
	if got, want := causes.String(), "  causes: verify x: signature invalid: not signed by release\n"; got != want {
		t.Errorf("TellCauses = %q, want %q", got, want)
	}
	causes.Reset()
	if outcome.TellCauses(&causes, deep); causes.Len() > 0 {
		t.Errorf("TellCauses without a summary = %q, want nothing", causes.String())
	}
}
