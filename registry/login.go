package registry

import (
	"context"
	"fmt"
	"net/http"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Login checks credentials against a registry and then stores them where Docker and podman find them: in a credential
// helper if the file names one, otherwise in the file. It returns the place. user is empty when secret is an identity token.
func (c *Client) Login(ctx context.Context, host, user, secret string) (stored string, err error) {
	if secret == "" {
		return "", newError("log in to", host, fmt.Errorf("the password or token is empty: %w", fault.ErrInvalid))
	}
	if err := c.ping(ctx, host, user, secret); err != nil {
		if err = newError("log in to", host, err); fault.Hint(err) == wire.HintLogin {
			err = &Error{"log in to", host, errPassword}
		}
		return "", err
	}
	stored, err = c.files.Store(ctx, host, credential(user, secret))
	return stored, newError("log in to", host, err)
}

// Logout removes the stored credentials of host, and returns the files and helpers that had them; none is not an error.
func (c *Client) Logout(ctx context.Context, host string) (removedFrom []string, err error) {
	if err := checkHost(host); err != nil {
		return nil, newError("log out of", host, err)
	}
	removedFrom, err = c.files.Erase(ctx, host)
	return removedFrom, newError("log out of", host, err)
}

func credential(user, secret string) auth.Credential {
	if user == "" {
		return auth.Credential{RefreshToken: secret}
	}
	return auth.Credential{Username: user, Password: secret}
}

func checkHost(host string) error {
	if r, err := ParseReference(host + "/x"); err != nil || r.Scheme != SchemeOCI || r.Registry != host {
		return fmt.Errorf("it is no registry host: %w", fault.ErrInvalid)
	}
	return nil
}

// ping sends a request to the registry's base address with only these credentials.
func (c *Client) ping(ctx context.Context, host, user, secret string) error {
	if err := checkHost(host); err != nil {
		return err
	}
	all, err := c.endpoints(host)
	if err != nil {
		return err
	}
	a := c.newAccess(all[len(all)-1], Reference{Registry: host})
	a.auth.Credential = a.noting(auth.StaticCredential(a.host, credential(user, secret)))
	a.withheld = func() bool { return false }
	resp, err := a.call(ctx, http.MethodGet, "", nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// lookup finds the credential for a repository at one endpoint.
func (c *Client) lookup(ctx context.Context, e *endpoint, registryHost, repository string) (auth.Credential, error) {
	if !e.mirror && c.isFor(registryHost) {
		switch {
		case c.o.Username != "":
			return auth.Credential{Username: c.o.Username, Password: c.o.Password}, nil
		case c.o.Token != "":
			return auth.Credential{AccessToken: c.o.Token}, nil
		}
	}
	host := e.host
	if !e.mirror && e.host == dockerHubHost {
		host = dockerHub
	}
	cred, err := c.files.Lookup(ctx, host, repository)
	if err == nil && cred == auth.EmptyCredential && !e.mirror && host != registryHost &&
		credentials.ServerAddressFromRegistry(host) != credentials.ServerAddressFromRegistry(registryHost) {
		// The registry's host differs from its name in references; users log in to the latter.
		cred, err = c.files.Lookup(ctx, registryHost, repository)
	}
	return cred, err
}
