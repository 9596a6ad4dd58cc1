package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// What kept us from a registry is told in words, with what to look at.
func TestNoWay(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 443}
	dial := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://192.0.2.7/v2/?token=secret", Err: &net.OpError{Op: "dial", Net: "tcp", Addr: at, Err: err}}
	}
	for text, err := range map[string]error{
		"connect to 192.0.2.7:443: connection refused: temporarily unavailable":     dial(&net.OpError{Op: "connect", Err: syscall.ECONNREFUSED}),
		"look up harbor.acme.example: no such host: temporarily unavailable":        &net.OpError{Op: "dial", Err: &net.DNSError{Name: "harbor.acme.example", Err: "no such host", Server: "192.0.2.53:53"}},
		"connect to 192.0.2.7:443: no answer in time: temporarily unavailable":      dial(os.ErrDeadlineExceeded),
		"no answer in time: temporarily unavailable":                                &url.Error{Op: "Get", URL: "https://192.0.2.7/v2/?token=secret", Err: context.DeadlineExceeded},
		"read tcp 192.0.2.7:443: connection reset by peer: temporarily unavailable": &net.OpError{Op: "read", Net: "tcp", Addr: at, Err: syscall.ECONNRESET},
	} {
		if got := registry.Classify(err); got.Error() != text || !errors.Is(got, fault.ErrTemporary) {
			t.Errorf("Classify = %v, want %s", got, text)
		}
	}
	if got := registry.Classify(context.DeadlineExceeded); !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("%q does not wrap the end of the context", got)
	}
	for name, err := range map[string]error{
		"in a connection": dial(os.ErrDeadlineExceeded), "of a context": context.DeadlineExceeded,
		"of a TLS handshake": fmt.Errorf("get: %w", handshakeTimeout(t)),
	} {
		got := registry.Classify(err)
		if !strings.Contains(got.Error(), "no answer in time: ") || strings.Contains(got.Error(), "deadline") || strings.Contains(got.Error(), "TLS") || fault.Hint(got) == "" {
			t.Errorf("a timeout %s is %q with hint %q", name, got, fault.Hint(got))
		}
	}
	if registry.Classify(dial(syscall.ECONNREFUSED)) == nil || fault.Hint(registry.Classify(dial(syscall.ECONNREFUSED))) == "" {
		t.Error("no hint where nothing listens")
	}
}

// handshakeTimeout is the error of a TLS handshake without an answer.
func handshakeTimeout(t *testing.T) error {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+silent.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{TLSHandshakeTimeout: time.Millisecond}).RoundTrip(r)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("a server that says nothing has answered")
	}
	return err
}

// Who asked for what a registry does not have is told where to look; of what could not be asked nothing is known.
func TestLook(t *testing.T) {
	const digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, tc := range []struct {
		reference string
		err       error
		want      string
	}{
		{"harbor.acme.example/plant/line:9.9.9", fault.ErrNotFound, "are the repository and the tag right? the registry has nothing under that name"},
		{"harbor.acme.example/plant/lime", fault.ErrNotFound, "is the path right? a registry knows a repository from the first push to it"},
		{"harbor.acme.example/plant/line" + digest, fault.ErrNotFound, "is that the repository? registries remove what no tag names"},
		{"harbor.acme.example/plant/line:9.9.9", fault.ErrTemporary, ""},
		{"harbor.acme.example/plant/line:9.9.9", errors.Join(fault.ErrNotFound, fault.ErrTemporary), ""},
		{"oci-layout:plant:9.9.9", fault.ErrNotFound, ""},
	} {
		var e *registry.Error
		if !errors.As(registry.NewError("resolve", tc.reference, tc.err), &e) || e.Look() != tc.want {
			t.Errorf("Look of %s, %v = %q, want %q", tc.reference, tc.err, e.Look(), tc.want)
		}
	}
	var e *registry.Error
	if !errors.As(registry.NewError("push blob", "harbor.acme.example/plant/lime"+digest, fault.ErrNotFound), &e) || !strings.Contains(e.Look(), "project") || strings.Contains(e.Look(), "first push") {
		t.Errorf("Look of a push = %q", e.Look())
	}
}

// What a registry does not have is named as it was asked for, without the registry's status.
func TestMissingIsNamed(t *testing.T) {
	said := fmt.Errorf("%w (the answer was: 404 page not found)", fault.ErrNotFound)
	for _, tc := range []struct {
		op, reference string
		err           error
		want          string
	}{
		{"resolve", "harbor.acme.example/plant/state:press-07", fault.ErrNotFound, "there is no harbor.acme.example/plant/state:press-07"},
		{"list tags", "harbor.acme.example/plant/lime", fault.ErrNotFound, "there is no repository harbor.acme.example/plant/lime"},
		{"list tags", "harbor.acme.example/plant/lime", said, "there is no repository harbor.acme.example/plant/lime (the answer was: 404 page not found)"},
		{"push blob", "harbor.acme.example/plant/lime", fault.ErrNotFound, "push blob harbor.acme.example/plant/lime: not found"},
		{"resolve", "harbor.acme.example/plant/line:1", fmt.Errorf("the mirror does not have enough of it: %w", fault.ErrNotFound), "resolve harbor.acme.example/plant/line:1: the mirror does not have enough of it: not found"},
		{"resolve", "harbor.acme.example/plant/line:1", errors.Join(fault.ErrNotFound, fault.ErrTemporary), "resolve harbor.acme.example/plant/line:1: not found\ntemporarily unavailable"},
		{"open", "oci-layout:plant:9.9.9", fault.ErrNotFound, "open oci-layout:plant:9.9.9: not found"},
	} {
		err := registry.NewError(tc.op, tc.reference, tc.err)
		if err.Error() != tc.want || !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("error %q, want %q", err, tc.want)
		}
	}
}
