package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

func (p *program) loginCommand() *cli.Command {
	return p.command("", command{
		name: "login", args: "HOST", min: 1, max: 1,
		usage: "log in to a registry",
		about: "Verifies user and password at the registry and stores them where Docker and podman find them: in a credential helper " +
			"if one is configured. Credentials of docker, podman, oras or crane are found without this command. With --token " +
			"alone, an identity token is stored.",
		examples: []string{"-u anna harbor.acme.example", "-u 'robot$ci' --password-stdin harbor.acme.example < token.txt"},
		flags:    registryFlags(),
		run:      p.login,
	})
}

func (p *program) logoutCommand() *cli.Command {
	return p.command("", command{
		name: "logout", args: "HOST", min: 1, max: 1,
		usage:    "delete the stored credentials of a registry",
		about:    "Deletes what login stored. It is not an error if nothing is stored.",
		examples: []string{"harbor.acme.example", "--registry-config ci.json harbor.acme.example"},
		flags:    registryFlags(),
		run:      p.logout,
	})
}

type loginResult struct {
	Host   string   `json:"host"`
	User   string   `json:"user,omitempty"`
	KeptIn []string `json:"keptIn"` // files and credential helpers that have the credentials, or had them
	in     bool
}

func (r loginResult) text(w io.Writer) {
	switch {
	case r.in:
		row(w, "logged in", "to %s%s, kept in %s", r.Host, as(r.User), strings.Join(r.KeptIn, ", "))
	case len(r.KeptIn) == 0:
		row(w, "note", "nothing was kept for %s", r.Host)
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

func (r loginResult) essence() string { return "" }

// checkHost refuses what people copy from a browser.
func checkHost(command, host string) error {
	for _, scheme := range []string{"https://", "http://", "oci://"} {
		if rest, ok := strings.CutPrefix(host, scheme); ok {
			rest, _, _ = strings.Cut(rest, "/")
			return fault.WithHint(fmt.Errorf("%s: %s is %w: a registry is named by its host alone", command, host, fault.ErrInvalid), "longshore "+command+" "+rest)
		}
	}
	return nil
}

func (p *program) login(c *cli.Context, args []string) error {
	if err := checkHost("login", args[0]); err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	user := c.String("username")
	secret, err := p.registryPassword(c)
	if err != nil {
		return err
	}
	if secret == "" {
		secret = c.String("token")
	}
	if secret == "" {
		if user == "" {
			if user, err = p.ask("user name at " + args[0] + ": "); err != nil {
				return err
			}
		}
		if user == "" {
			return misused(c, "who? use --username")
		}
		typed, err := p.prompt("password of " + user + " at " + args[0] + ": ")
		if err != nil {
			return misused(c, "there is no terminal to ask for the password at: use --password-stdin")
		}
		secret = string(typed)
	}
	stored, err := client.Login(c.Context, args[0], user, secret)
	if err != nil {
		return err
	}
	return p.show(c, loginResult{Host: args[0], User: user, KeptIn: []string{stored}, in: true})
}

func (p *program) logout(c *cli.Context, args []string) error {
	if err := checkHost("logout", args[0]); err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	removed, err := client.Logout(c.Context, args[0])
	if err != nil {
		return err
	}
	return p.show(c, loginResult{Host: args[0], KeptIn: append([]string{}, removed...)})
}
