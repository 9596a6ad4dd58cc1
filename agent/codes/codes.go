// Package codes names the problems of a device, for people and for fleet managers, and explains each. It is pure.
package codes

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Code names a problem, for ever: people search for it, fleet managers match on it. [All] explains each.
type Code string

// Codes of the nine checks between a tag and running containers, in the order of the checks.
const (
	SourceUnreachable     Code = "source-unreachable"
	SourceUnauthenticated Code = "source-unauthenticated"
	SourceDenied          Code = "source-denied"
	StateNotFound         Code = "state-not-found"

	StateDigest      Code = "state-digest-mismatch"
	StateTooLarge    Code = "state-too-large"
	StateUnsupported Code = "state-unsupported"

	SignatureMissing   Code = "signature-missing"
	SignatureInvalid   Code = "signature-invalid"
	SignatureThreshold Code = "signature-threshold"
	SignatureRejected  Code = "policy-rejected"
	KeyExpired         Code = "key-expired"
	AttestationMissing Code = "attestation-missing"
	AttestationInvalid Code = "attestation-invalid"

	WrongDevice Code = "wrong-device"

	Rollback           Code = "generation-rollback"
	GenerationConflict Code = "generation-conflict"

	Expired    Code = "state-expired"
	StateStale Code = "state-stale"

	StateInvalid      Code = "state-invalid"
	StateMixed        Code = "state-mixed"
	DeploymentInvalid Code = "deployment-invalid"
	ContentDigest     Code = "content-digest-mismatch"
	ContentMissing    Code = "content-missing"
	DeviceUnfit       Code = "device-unfit"

	ComponentUnpinned    Code = "component-unpinned"
	ComponentMissing     Code = "component-missing"
	ComponentDigest      Code = "component-digest-mismatch"
	ComponentUnsigned    Code = "component-signature-missing"
	ComponentSignature   Code = "component-signature-invalid"
	ComponentRejected    Code = "component-rejected"
	ComponentInvalid     Code = "component-invalid"
	ComponentUnsupported Code = "component-unsupported"
	PortConflict         Code = "port-conflict"

	ImageUnpinned  Code = "image-unpinned"
	ImageUnsigned  Code = "image-signature-missing"
	ImageSignature Code = "image-signature-invalid"
	ImageRejected  Code = "image-rejected"
	ImagePlatform  Code = "image-platform"
	ImageMissing   Code = "image-missing"
	ImageDigest    Code = "image-digest-mismatch"
	ImagePull      Code = "image-pull"
)

// Codes of what can happen to an accepted state and its workloads.
const (
	Runtime          Code = "runtime"
	ContainerExited  Code = "container-exited"
	Unhealthy        Code = "unhealthy"
	Timeout          Code = "component-timeout"
	BootLoop         Code = "boot-loop"
	Stale            Code = "stale"
	ContentDamaged   Code = "content-damaged"
	DatabaseDamaged  Code = "database-damaged"
	MirrorDigest     Code = "mirror-digest-mismatch"
	FleetUnreachable Code = "fleet-unreachable"
	ReportsLost      Code = "reports-lost"

	ReportUnpublished Code = "report-unpublished"

	// Codes of changes that wait for people or times at the device.

	ApprovalNeeded  Code = "approval-needed"
	ChangeRejected  Code = "change-rejected"
	ChangePostponed Code = "change-postponed"
	UpdateLocked    Code = "update-locked"
	OutsideWindow   Code = "outside-window"
	Held            Code = "held"

	Insecure    Code = "insecure"
	DiskFull    Code = "disk-full"
	DiskLow     Code = "disk-low"
	PullStalled Code = "pull-stalled"
	Admission   Code = "admission-refused"
	ClockWrong  Code = "clock-wrong"
	Config      Code = "config-invalid"
	Internal    Code = "internal"
)

// Codes of deployments for devices behind this one: Margo reserves them for gateways, and this agent is none.
const (
	UnknownChild Code = "101"
	NoPlacement  Code = "103"
)

// Codes of the trust policy that comes from the registry, and of what it takes back.
const (
	TrustUnreachable Code = "trust-unreachable"
	TrustMissing     Code = "trust-missing"
	TrustInvalid     Code = "trust-invalid"
	TrustRollback    Code = "trust-rollback"
	TrustUnusable    Code = "trust-unusable"
	TrustExpired     Code = "trust-expired"
	TrustUnused      Code = "trust-file-unused"
	KeyRevoked       Code = "key-revoked"
	DigestRevoked    Code = "digest-revoked"
)

// Attack reports whether a code means what an attacker between the publisher and this device does, and what a careful publisher
// never does. Such problems also make a security event, which is kept when the agent ends.
func (c Code) Attack() bool {
	switch c {
	case StateDigest, SignatureMissing, SignatureInvalid, WrongDevice, Rollback, GenerationConflict, StateMixed,
		ContentDigest, ComponentDigest, ComponentSignature, ImageDigest, ImageSignature,
		KeyRevoked, DigestRevoked, SignatureThreshold, AttestationInvalid, TrustInvalid, TrustRollback, TrustUnusable,
		DatabaseDamaged, MirrorDigest:
		return true
	}
	return false
}

type Doc struct {
	Code    Code
	Check   int    // number of the check, 1 to 9; 0: not one of them
	Retried bool   // asked again without anyone doing anything
	Meaning string // what happened
	Action  string // what a person can do
}

// Error is a failed check: the code, and what was tried on what.
type Error struct {
	Code Code
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Wrap names a failed check. The message is the error's own.
func Wrap(code Code, err error) error { return &Error{code, err} }

// Errorf names a failed check.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Errorf(format, args...)}
}

// Of returns the code of an error of the agent; [Internal] when it has none.
func Of(err error) Code {
	var c *Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ENOSPC):
		return DiskFull
	case errors.As(err, &c):
		return c.Code
	case errors.Is(err, fault.ErrTemporary):
		return SourceUnreachable
	}
	return Internal
}

// Hint is the error's own hint, else what its code's explanation says.
func Hint(err error) string {
	if h := fault.Hint(err); h != "" {
		return h
	}
	return Explain(Of(err)).Action
}
