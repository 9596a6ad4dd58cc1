package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

var loginCommand = command{
	name: "login", args: "HOST", min: 1, max: 1,
	usage: "log in to a registry",
	about: "Verifies user and password at the registry and stores them where Docker and podman find them: in a credential helper " +
		"if one is configured. Credentials of docker, podman, oras or crane are found without this command. With --token " +
		"alone, an identity token is stored.",
	examples: []string{"-u anna harbor.acme.example", "-u 'robot$ci' --password-stdin harbor.acme.example < token.txt"},
	flags:    registryFlags,
	run:      (*call).login,
}

var logoutCommand = command{
	name: "logout", args: "HOST", min: 1, max: 1,
	usage:    "delete the stored credentials of a registry",
	about:    "Deletes what login stored. It is not an error if nothing is stored.",
	examples: []string{"harbor.acme.example", "--registry-config ci.json harbor.acme.example"},
	flags:    registryFlags,
	run:      (*call).logout,
}

type loginResult struct {
	Host   string   `json:"host"`
	User   string   `json:"user,omitempty"`
	KeptIn []string `json:"keptIn"` // files and credential helpers that store the credentials, or stored them
	in     bool
}

func (r loginResult) text(w io.Writer) {
	switch {
	case r.in:
		row(w, "logged in", "to %s%s, stored in %s", r.Host, as(r.User), strings.Join(r.KeptIn, ", "))
	case len(r.KeptIn) == 0:
		row(w, "note", "no credentials were stored for %s", r.Host)
	default:
		row(w, "logged out", "of %s, removed from %s", r.Host, strings.Join(r.KeptIn, ", "))
	}
}

func as(user string) string {
	if user == "" {
		return ""
	}
	return " as " + user
}

// checkHost rejects an address that was copied from a browser, and a repository.
func checkHost(command, given string) error {
	host := given
	for _, scheme := range []string{"https://", "http://", "oci://"} {
		host = strings.TrimPrefix(host, scheme)
	}
	if host, _, _ = strings.Cut(host, "/"); host == given {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%s: %s is %w: name the registry by its host only", command, given, fault.ErrInvalid), "longshore "+command+" "+host)
}

func (c *call) login(args []string) error {
	if err := checkHost("login", args[0]); err != nil {
		return err
	}
	user := c.String("username")
	secret, err := c.registryPassword()
	if err != nil {
		return err
	}
	if secret = cmp.Or(secret, c.String("token")); secret == "" {
		if user == "" {
			if user, err = c.ask("user name at " + args[0] + ": "); err != nil {
				return err
			}
		}
		if user == "" {
			return c.misused("use --username")
		}
		typed, err := c.prompt("password of " + user + " at " + args[0] + ": ")
		if errors.Is(err, fault.ErrUnauthenticated) {
			return c.misused("there is no terminal to ask for the password: use --password-stdin")
		}
		if err != nil {
			return err
		}
		if secret = string(typed); secret == "" {
			return c.misused("no password was typed")
		}
	}
	stored, err := c.registry.Login(c.Context, args[0], user, secret)
	if err != nil {
		return err
	}
	return c.show(loginResult{Host: args[0], User: user, KeptIn: []string{stored}, in: true})
}

func (c *call) logout(args []string) error {
	if err := checkHost("logout", args[0]); err != nil {
		return err
	}
	removed, err := c.registry.Logout(c.Context, args[0])
	if err != nil {
		return err
	}
	return c.show(loginResult{Host: args[0], KeptIn: append([]string{}, removed...)})
}
