package store

import (
	"context"
	"time"
)

// Enrollments knows the keys of devices and what is decided about each. A key is known by the fingerprint of its public half.
//
// At any time an id belongs to one key at most, and a key to one id. A decision is for a key: it never passes to another one.
type Enrollments interface {
	// RequestEnrollment notes that a key asks, and returns what is decided about it. An unknown key becomes pending, or approved by a
	// join token, which is used up in the same transaction. fault.ErrFull: too many are pending; fault.ErrDenied: the token does not
	// count; fault.ErrConflict: another key has the id that the token gives.
	RequestEnrollment(ctx context.Context, r EnrollmentRequest) (Enrollment, error)
	// ApproveEnrollment gives a key an id. fault.ErrNotFound: it has not asked, and a.Ahead is not set; fault.ErrConflict: another
	// key has the id, or the key has another id. An earlier denial or removal of the key is over.
	ApproveEnrollment(ctx context.Context, a Approval) (Enrollment, error)
	// DenyEnrollment denies a key that is not enrolled.
	DenyEnrollment(ctx context.Context, key, reason string, at time.Time) error
	// RemoveDevice ends the enrollment of a device, if it has one, and its bearer tokens, and forgets its reports, those of the devices
	// behind it, and which State Manifest it was given. Its key stays known as removed. fault.ErrNotFound: there is nothing of it; or, with
	// wipe, it is not enrolled.
	RemoveDevice(ctx context.Context, device string, wipe bool, at time.Time) (Enrollment, error)
	// NoteGrant records what a key is about to get. If credential is "", one that it got before stays recorded. fault.ErrConflict: it is not
	// approved any more.
	NoteGrant(ctx context.Context, key, credential string, until time.Time) error
	// NoteWithdrawal records that the credential of a removed key is withdrawn.
	NoteWithdrawal(ctx context.Context, key string) error

	Enrollment(ctx context.Context, key string) (Enrollment, error)
	ListEnrollments(ctx context.Context, q EnrollmentQuery) ([]Enrollment, error)
	// EnrollmentChanges is a number that is another one after each decision, also by another process.
	EnrollmentChanges(ctx context.Context) (int64, error)

	AddJoinTokens(ctx context.Context, tokens ...JoinToken) error
	ListJoinTokens(ctx context.Context) ([]JoinToken, error)
	RevokeJoinToken(ctx context.Context, id string, at time.Time) error
}

// Limits of enrollment.
const (
	MaxPending        = 1000                // keys that wait for a decision
	MaxPendingAddress = 100                 // of them, those whose first request came from one address: a site behind one router
	PendingAge        = time.Hour           // a pending key that has not asked for so long is forgotten
	JoinTokenAge      = 90 * 24 * time.Hour // an expired join token is forgotten then
)

// EnrollmentState is the decision about a key.
type EnrollmentState string

// States of a key.
const (
	EnrollmentPending  EnrollmentState = "pending"  // it asks; nothing is decided
	EnrollmentExpected EnrollmentState = "expected" // approved before it has asked
	EnrollmentApproved EnrollmentState = "approved"
	EnrollmentDenied   EnrollmentState = "denied"
	EnrollmentRemoved  EnrollmentState = "removed" // it was approved
)

// Enrollment is the record of a key.
type Enrollment struct {
	Key        string // fingerprint
	State      EnrollmentState
	Device     string // what a pending key asks for, perhaps ""; else its id
	Reason     string // of a denial
	First      time.Time
	Asked      time.Time // last request, to the minute; zero: none
	Decided    time.Time
	Expires    time.Time // of an approval before the first request; zero: never
	Certified  time.Time // end of the last certificate; zero: none
	Wipe       bool      // the removed device is asked to wipe itself
	Address    string    // that the first request came from
	Credential string    // identifies the pull credential for its withdrawal; "": nothing to withdraw
	About      []byte    // JSON, what the device reports about itself; not verified
}

// EnrollmentRequest is a request of a device that has proved to have the key.
type EnrollmentRequest struct {
	Key     string
	Device  string // id that it asks for; "": none
	Address string
	About   []byte
	Token   *JoinProof // nil: none
	At      time.Time
}

// JoinProof is a join token as it is presented.
type JoinProof struct {
	ID   string
	Hash []byte // SHA-256 of the secret
}

// Approval gives a key an id.
type Approval struct {
	Key     string
	Device  string
	Ahead   bool      // the key need not have asked
	Expires time.Time // with Ahead: when the approval of a key that has not asked ends; zero: never
	At      time.Time
}

// EnrollmentQuery chooses keys. All conditions must hold.
type EnrollmentQuery struct {
	State    EnrollmentState // "": all
	Withdraw bool            // removed, with a credential that is still to be withdrawn
}

// JoinToken lets one device enroll without an operator. Only a hash of its secret is kept.
type JoinToken struct {
	ID      string
	Device  string // the only id that it is for; "": the device says its id, which must be free
	Hash    []byte // SHA-256 of the secret
	Created time.Time
	Expires time.Time
	Used    time.Time // zero: not used
	Key     string    // that used it
	Revoked time.Time // zero: valid
}
