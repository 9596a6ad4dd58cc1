package auths

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
)

// The credential helper protocol of Docker: the program "docker-credential-NAME" is called with get, store or erase, reads a
// server or a [secret] from stdin, and writes the result or an error message to stdout.
const (
	helperPrefix = "docker-credential-"
	notFound     = "credentials not found in native keychain"
	tokenUser    = "<token>" // in the place of a user name: the secret is an identity token
	maxAnswer    = 1 << 20
	helperLinger = time.Second // for the remaining output of a helper that has ended
)

// errLate ends a helper that does not answer in time.
var errLate = errors.New("it did not answer in time")

// secret is a helper's entry for a server.
type secret struct {
	ServerURL string
	Username  string
	Secret    string
}

// helper is a store of credentials behind a helper program. oras-go has one too, but it waits for ever for a program that
// hangs, or whose children keep its output open.
type helper struct {
	name  string        // after "docker-credential-"
	limit time.Duration // of one call
}

// Get returns the empty credential if the helper has none for the server.
func (h helper) Get(ctx context.Context, server string) (auth.Credential, error) {
	out, err := h.call(ctx, "get", []byte(server))
	if err != nil {
		if strings.TrimSpace(string(out)) == notFound {
			err = nil
		}
		return auth.EmptyCredential, err
	}
	var found secret
	if err := json.Unmarshal(out, &found); err != nil {
		return auth.EmptyCredential, errors.New("its answer is not JSON") // without the output, which may contain the secret
	}
	if found.Username == tokenUser {
		return auth.Credential{RefreshToken: found.Secret}, nil
	}
	return auth.Credential{Username: found.Username, Password: found.Secret}, nil
}

func (h helper) Put(ctx context.Context, server string, cred auth.Credential) error {
	kept := secret{server, cred.Username, cred.Password}
	if cred.RefreshToken != "" {
		kept.Username, kept.Secret = tokenUser, cred.RefreshToken
	}
	in, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	_, err = h.call(ctx, "store", in)
	return err
}

func (h helper) Delete(ctx context.Context, server string) error {
	_, err := h.call(ctx, "erase", []byte(server))
	return err
}

// call runs the helper to its end, or to that of ctx or the limit: then it ends with every process that it started.
func (h helper) call(ctx context.Context, action string, in []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.limit, errLate)
	defer cancel()
	// The kernel ends a child with the thread that started it, see attach.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := &capped{left: maxAnswer}
	cmd := exec.CommandContext(ctx, helperPrefix+h.name, action)
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = bytes.NewReader(in), out, helperLinger
	attach(cmd)
	err := cmd.Run()
	switch cause := context.Cause(ctx); {
	case err != nil && cause != nil:
		return nil, cause
	case errors.Is(err, exec.ErrWaitDelay): // it has succeeded, and a child process still has its output open
		err = nil
	}
	return out.Bytes(), err
}

// capped stores bytes up to a limit and returns an error above it.
type capped struct {
	bytes.Buffer
	left int
}

func (b *capped) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, fmt.Errorf("more than %d bytes", maxAnswer)
	}
	b.left -= len(p)
	return b.Buffer.Write(p)
}
