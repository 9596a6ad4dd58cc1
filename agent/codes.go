package agent

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Code names a problem, for ever: people search for it, fleet managers match on it. [Codes] explains each.
type Code string

// Codes of the nine checks between a tag and running containers, in the order of the checks.
const (
	CodeSourceUnreachable     Code = "source-unreachable"
	CodeSourceUnauthenticated Code = "source-unauthenticated"
	CodeSourceDenied          Code = "source-denied"
	CodeStateNotFound         Code = "state-not-found"

	CodeStateDigest      Code = "state-digest-mismatch"
	CodeStateTooLarge    Code = "state-too-large"
	CodeStateUnsupported Code = "state-unsupported"

	CodeSignatureMissing   Code = "signature-missing"
	CodeSignatureInvalid   Code = "signature-invalid"
	CodeSignatureThreshold Code = "signature-threshold"
	CodeSignatureRejected  Code = "policy-rejected"
	CodeKeyExpired         Code = "key-expired"
	CodeAttestationMissing Code = "attestation-missing"
	CodeAttestationInvalid Code = "attestation-invalid"

	CodeWrongDevice Code = "wrong-device"

	CodeRollback           Code = "generation-rollback"
	CodeGenerationConflict Code = "generation-conflict"

	CodeExpired    Code = "state-expired"
	CodeStateStale Code = "state-stale"

	CodeStateInvalid      Code = "state-invalid"
	CodeStateMixed        Code = "state-mixed"
	CodeDeploymentInvalid Code = "deployment-invalid"
	CodeContentDigest     Code = "content-digest-mismatch"
	CodeContentMissing    Code = "content-missing"
	CodeDeviceUnfit       Code = "device-unfit"

	CodeComponentUnpinned    Code = "component-unpinned"
	CodeComponentMissing     Code = "component-missing"
	CodeComponentDigest      Code = "component-digest-mismatch"
	CodeComponentUnsigned    Code = "component-signature-missing"
	CodeComponentSignature   Code = "component-signature-invalid"
	CodeComponentRejected    Code = "component-rejected"
	CodeComponentInvalid     Code = "component-invalid"
	CodeComponentUnsupported Code = "component-unsupported"
	CodePortConflict         Code = "port-conflict"

	CodeImageUnpinned  Code = "image-unpinned"
	CodeImageUnsigned  Code = "image-signature-missing"
	CodeImageSignature Code = "image-signature-invalid"
	CodeImageRejected  Code = "image-rejected"
	CodeImagePlatform  Code = "image-platform"
	CodeImageMissing   Code = "image-missing"
	CodeImageDigest    Code = "image-digest-mismatch"
	CodeImagePull      Code = "image-pull"
)

// Codes of what can happen to an accepted state and its workloads.
const (
	CodeRuntime          Code = "runtime"
	CodeContainerExited  Code = "container-exited"
	CodeUnhealthy        Code = "unhealthy"
	CodeTimeout          Code = "component-timeout"
	CodeStale            Code = "stale"
	CodeContentDamaged   Code = "content-damaged"
	CodeFleetUnreachable Code = "fleet-unreachable"
	CodeReportsLost      Code = "reports-lost"
	CodeInsecure         Code = "insecure"
	CodeDiskFull         Code = "disk-full"
	CodeAdmission        Code = "admission-refused"
	CodeClockWrong       Code = "clock-wrong"
	CodeInternal         Code = "internal"
)

// Codes of the trust policy that comes from the registry, and of what it takes back.
const (
	CodeTrustUnreachable Code = "trust-unreachable"
	CodeTrustInvalid     Code = "trust-invalid"
	CodeTrustRollback    Code = "trust-rollback"
	CodeTrustUnusable    Code = "trust-unusable"
	CodeTrustExpired     Code = "trust-expired"
	CodeTrustUnused      Code = "trust-file-unused"
	CodeKeyRevoked       Code = "key-revoked"
	CodeDigestRevoked    Code = "digest-revoked"
)

// CodeDoc explains a code.
type CodeDoc struct {
	Code    Code
	Check   int    // number of the check, 1 to 9; 0: not one of them
	Retried bool   // asked again without anyone doing anything
	Meaning string // what happened
	Action  string // what a person can do
}

// CheckError is a failed check: the code, and what was tried on what.
type CheckError struct {
	Code Code
	Err  error
}

func (e *CheckError) Error() string { return e.Err.Error() }
func (e *CheckError) Unwrap() error { return e.Err }

// refuse names a failed check. The message is the error's own.
func refuse(code Code, err error) error { return &CheckError{code, err} }

func refusef(code Code, format string, args ...any) error {
	return &CheckError{code, fmt.Errorf(format, args...)}
}

// CodeOf returns the code of an error of the agent; [CodeInternal] when it has none.
func CodeOf(err error) Code {
	var c *CheckError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ENOSPC):
		return CodeDiskFull
	case errors.As(err, &c):
		return c.Code
	case errors.Is(err, fault.ErrTemporary):
		return CodeSourceUnreachable
	}
	return CodeInternal
}

// hintOf is the error's own hint, else what its code's explanation says.
func hintOf(err error) string {
	if h := fault.Hint(err); h != "" {
		return h
	}
	return docOf(CodeOf(err)).Action
}
