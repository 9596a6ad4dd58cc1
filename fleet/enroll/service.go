package enroll

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
)

// Limits of the service.
const (
	inFlight     = 256              // requests that the database works on at once
	grantsAtOnce = 16               // each may ask a registry for a credential
	grantEvery   = 5 * time.Second  // of one device
	grantTimeout = 20 * time.Second // under the time that a request may take
	pendingRetry = 5                // seconds
	fullRetry    = 60
	busyRetry    = 5
)

// Options make a [Service]. All are required.
type Options struct {
	Store     store.Enrollments
	Policy    func() (*Policy, error)
	Authority Certifier
	Manager   identity.Source
	Now       func() time.Time
	Logger    *slog.Logger
}

// Service enrolls devices. Use [New], and run it.
type Service struct {
	o        Options
	slots    chan struct{}
	granting chan struct{}

	mu       sync.Mutex
	granted  map[digest.Digest]time.Time // when a key began to receive its last grant
	busy     map[digest.Digest]bool
	enrolled snapshot
}

// New makes a service.
func New(o Options) *Service {
	return &Service{
		o: o, slots: make(chan struct{}, inFlight), granting: make(chan struct{}, grantsAtOnce),
		granted: map[digest.Digest]time.Time{}, busy: map[digest.Digest]bool{},
	}
}

// ServeHTTP answers requests of devices, at [enroll.Path].
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		status.Refuse(w, r, http.StatusMethodNotAllowed, "only POST here")
		return
	}
	key, fingerprint, err := enroll.PeerKey(r.TLS)
	if err != nil {
		status.Refuse(w, r, http.StatusForbidden, explain(err))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, enroll.MaxRequest))
	var request enroll.Request
	if err == nil {
		request, err = enroll.ParseRequest(body, key)
	}
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		err = fmt.Errorf("request of a device: more than %d bytes: %w", enroll.MaxRequest, fault.ErrTooLarge)
	}
	if err != nil {
		w.Header().Set("Connection", "close") // the rest of the body may be on its way
		status.Refuse(w, r, http.StatusBadRequest, explain(err))
		return
	}
	answer, err := s.answer(r, request, key, fingerprint)
	if err != nil {
		s.refuse(w, r, fingerprint, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(answer) // the device repeats the request
}

// explain is an error for the sender of the request, with a hint.
func explain(err error) string {
	if hint := fault.Hint(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

func (s *Service) refuse(w http.ResponseWriter, r *http.Request, key digest.Digest, err error) {
	code, after := http.StatusInternalServerError, 0
	detail := "the manager cannot answer; its log says why"
	ours := (*ownError)(nil)
	switch {
	case errors.As(err, &ours):
		code, after = http.StatusServiceUnavailable, busyRetry
	case errors.Is(err, fault.ErrFull):
		code, after, detail = http.StatusServiceUnavailable, fullRetry, explain(err)
	case errors.Is(err, errBusy):
		code, after, detail = http.StatusTooManyRequests, busyRetry, explain(err)
	case errors.Is(err, fault.ErrDenied):
		code, detail = http.StatusForbidden, explain(err)
	case errors.Is(err, fault.ErrConflict):
		code, detail = http.StatusConflict, explain(err)
	case errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrConfig):
		code, detail = http.StatusBadRequest, explain(err)
	case errors.Is(err, fault.ErrTemporary):
		code, after = http.StatusServiceUnavailable, busyRetry
	}
	s.o.Logger.Warn("enrollment", "key", key, "from", r.RemoteAddr, "error", err, "hint", fault.Hint(err))
	status.RefuseFor(w, r, code, detail, after)
}

// ownError is a fault of this manager, such as one in its settings, whatever kind it has: the device is not told the words, and tries
// again.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

var errBusy = fmt.Errorf("too many requests of this device or of all devices at once: %w", fault.ErrTemporary)

// answer decides, and makes the grant of an approved device.
func (s *Service) answer(r *http.Request, request enroll.Request, key crypto.PublicKey, fingerprint digest.Digest) (enroll.Answer, error) {
	e, err := s.decided(r, request, fingerprint)
	if err != nil {
		return enroll.Answer{}, err
	}
	switch e.State {
	case store.EnrollmentApproved:
		a := enroll.Answer{Status: enroll.Approved, Device: e.Device}
		if !request.Check {
			a.Grant, err = s.grant(r.Context(), e.Device, key, fingerprint)
			return a, err
		}
		own, err := s.o.Manager.Credentials()
		if err == nil {
			a.TrustBundle = own.Bundle.JSON()
		}
		return a, err
	case store.EnrollmentDenied:
		return enroll.Answer{Status: enroll.Denied, Reason: e.Reason}, nil
	case store.EnrollmentRemoved:
		return enroll.Answer{Status: enroll.Removed, Device: e.Device, Wipe: e.Wipe}, nil
	}
	if e.First.Equal(e.Asked) {
		s.o.Logger.Info("a device asks to be enrolled", "key", fingerprint, "device", e.Device, "from", e.Address)
	}
	return enroll.Answer{Status: enroll.Pending, After: pendingRetry}, nil
}

// decided is the decision about a key.
func (s *Service) decided(r *http.Request, request enroll.Request, fingerprint digest.Digest) (store.Enrollment, error) {
	if request.Device != "" {
		if err := CheckDevice(request.Device); err != nil {
			return store.Enrollment{}, err
		}
	}
	about, err := json.Marshal(request.About)
	if err != nil {
		return store.Enrollment{}, err
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	q := store.EnrollmentRequest{Key: fingerprint.String(), Device: request.Device, Address: address, About: about, At: s.o.Now()}
	if request.Token != "" {
		if q.Token, err = parseToken(request.Token); err != nil {
			return store.Enrollment{}, err
		}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return store.Enrollment{}, errBusy
	}
	return s.o.Store.RequestEnrollment(r.Context(), q)
}

// CheckDevice checks the id of a device that has a certificate of its own: it is the client's part of a SPIFFE id.
func CheckDevice(id string) error {
	_, err := identity.ParseName(identity.Name{TrustDomain: "x", Manager: "x", Client: id}.String())
	if err != nil || id == "" || len(id) > maxDevice {
		return fault.WithHint(fmt.Errorf("%q is no id of a device with a certificate: %w", id, fault.ErrInvalid),
			"use letters, digits, dots, dashes and underscores; a device behind a gateway is not enrolled itself")
	}
	return nil
}

const maxDevice = 255
