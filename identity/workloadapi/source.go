// Package workloadapi gets the credentials of mutual TLS from the SPIFFE Workload API, as SPIRE's agent serves it on the same machine.
// The entry point is [New]; TestRotation holds what happens while the API is away.
//
// # Why Unix sockets only
//
// The API sends private keys in the clear and finds out by the socket who asks. Over TCP everybody on the machine could have them.
package workloadapi

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	spiffe "github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
)

// Variable is the environment variable by which SPIFFE's tools find the API.
const Variable = spiffe.SocketEnv

// maxPause is the longest pause between two connections to an API that is away. A restart of SPIRE's agent is short.
const maxPause = 10 * time.Second

// Options make a [Source]. All but Manager are required.
type Options struct {
	Address string           // unix:///run/spire/agent.sock
	Manager bool             // the SVID of a manager is wanted; false: of a client
	Now     func() time.Time // what dates are held against
	Log     *slog.Logger
}

// Source has the credentials that the API gave last. It implements [identity.Source] and is safe for concurrent use.
type Source struct {
	o Options

	mu      sync.Mutex
	current *identity.Credentials // nil: none could be used yet
	next    *identity.Credentials // newer ones that cannot be used yet, such as ones that are not valid by this clock; nil: none
	err     error                 // why there are no newer ones
	told    string                // the reason that the log has told
}

var _ identity.Source = (*Source)(nil)

// New checks the options. It asks nobody: [Source.Run] and [Source.Fetch] do.
func New(o Options) (*Source, error) {
	path, ok := strings.CutPrefix(o.Address, "unix://")
	if !ok || !filepath.IsAbs(path) || spiffe.ValidateAddress(o.Address) != nil {
		return nil, fault.WithHint(fmt.Errorf("the Workload API %q is not the address of a Unix socket: %w", o.Address, fault.ErrInvalid), "write it like unix:///run/spire/agent.sock")
	}
	s := &Source{o: o}
	s.err = s.failed(errors.New("it has not answered yet"), "")
	return s, nil
}

// Credentials implements [identity.Source]: the newest that can be used. Without any, or when they have expired and the API gave no
// newer ones, the error wraps fault.ErrTemporary and says what is wrong with the API.
func (s *Source) Credentials() (*identity.Credentials, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt()
	switch {
	case s.current == nil:
		return nil, s.err
	case s.err != nil && s.o.Now().After(s.current.SVID.NotAfter):
		return nil, fmt.Errorf("the certificate of %s expired at %s: %w", s.current.SVID.Name, s.current.SVID.NotAfter.UTC().Format(time.RFC3339), s.err)
	}
	return s.current, nil
}

// Fetch asks once and returns whether there are credentials now. An API that is away is an error at once.
func (s *Source) Fetch(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	answer, err := client.FetchX509Context(ctx)
	if err != nil {
		s.OnX509ContextWatchError(err)
	} else {
		s.OnX509ContextUpdate(answer)
	}
	_, err = s.Credentials()
	return err
}

// Run follows the API until ctx ends. It tries again for ever.
func (s *Source) Run(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	for ctx.Err() == nil {
		_ = client.WatchX509Context(ctx, s) // told by OnX509ContextWatchError; it ends early where the API calls the question wrong
		_ = delay.For(ctx, maxPause)        // the loop ends with ctx
	}
	return nil
}

func (s *Source) connect(ctx context.Context) (*spiffe.Client, error) {
	pause := backoff.DefaultConfig
	pause.MaxDelay = maxPause
	client, err := spiffe.New(ctx, spiffe.WithAddr(s.o.Address), spiffe.WithDialOptions(grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: maxPause})))
	if err != nil {
		return nil, s.failed(err, "")
	}
	return client, nil
}

// OnX509ContextUpdate implements the library's watcher.
func (s *Source) OnX509ContextUpdate(answer *spiffe.X509Context) {
	c, err := s.pick(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.tell(s.failed(err, "register an entry for this program with such an id: spire-server entry create -spiffeID spiffe://TRUST-DOMAIN/margo/wfm/…"))
		return
	}
	s.next = c
	s.adopt()
}

// OnX509ContextWatchError implements the library's watcher.
func (s *Source) OnX509ContextWatchError(err error) {
	hint := ""
	switch status.Code(err) {
	case codes.Canceled: // by us
		return
	case codes.PermissionDenied:
		hint = "SPIRE has no entry that fits this program: spire-server entry create, and spire-agent's log says how it sees the program"
	case codes.Unavailable, codes.DeadlineExceeded:
		hint = "is spire-agent running, and is this its socket?"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(s.failed(err, hint))
}

// adopt takes newer credentials into use as soon as they can be used.
func (s *Source) adopt() {
	if s.next == nil {
		return
	}
	if err := s.next.Check(s.o.Now()); err != nil {
		s.tell(s.failed(err, ""))
		return
	}
	c, before := s.next, s.current
	s.current, s.next, s.err, s.told = c, nil, nil, ""
	if before == nil || !before.SVID.Leaf().Equal(c.SVID.Leaf()) || !bytes.Equal(before.Bundle.JSON(), c.Bundle.JSON()) {
		s.o.Log.Info("certificate received", "workloadAPI", s.o.Address, "id", c.SVID.Name.String(), "notAfter", c.SVID.NotAfter, "anchors", len(c.Bundle.Anchors()))
	}
}

// tell keeps a reason, and logs it once while there are credentials: without them whoever asks is told.
func (s *Source) tell(err error) {
	s.err = err
	if err.Error() != s.told && s.current != nil {
		s.told = err.Error()
		s.o.Log.Warn("no newer certificate: the one before stays in use", "error", err, "hint", fault.Hint(err), "notAfter", s.current.SVID.NotAfter)
	}
}

// failed is a problem of the API: each may pass without a restart of this program.
func (s *Source) failed(err error, hint string) error {
	if st, ok := status.FromError(err); ok && err != nil {
		err = errors.New(st.Message())
	}
	err = fmt.Errorf("the Workload API %s: %w: %w", s.o.Address, err, fault.ErrTemporary)
	if hint != "" {
		err = fault.WithHint(err, hint)
	}
	return err
}

// pick takes the first SVID with the id of what this program is, and the trust bundle of its trust domain.
func (s *Source) pick(answer *spiffe.X509Context) (*identity.Credentials, error) {
	what := "manager's client"
	if s.o.Manager {
		what = "manager"
	}
	var others []string
	for _, x := range answer.SVIDs {
		name, err := identity.ParseName(x.ID.String())
		if err != nil || (name.Client == "") != s.o.Manager {
			others = append(others, x.ID.String())
			continue
		}
		svid, err := identity.NewSVID(x.PrivateKey, "of the Workload API", x.Certificates)
		if err != nil {
			return nil, err
		}
		anchors, ok := answer.Bundles.Get(x.ID.TrustDomain())
		if !ok {
			return nil, fmt.Errorf("it has no trust bundle of %s: %w", name.TrustDomain, fault.ErrInvalid)
		}
		var text []byte
		for _, a := range anchors.X509Authorities() {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw})...)
		}
		bundle, err := identity.ParseBundle("of the Workload API", text, name.TrustDomain)
		if err != nil {
			return nil, err
		}
		return &identity.Credentials{SVID: svid, Bundle: bundle}, nil
	}
	return nil, fmt.Errorf("it gives this program no id of a %s, only %s: %w", what, strings.Join(others, ", "), fault.ErrInvalid)
}
