package main

import (
	"cmp"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
)

// identityFlags name the identity that must have signed, if no key does; spelled as in cosign.
var identityFlags = []cmdline.Flag{
	{Name: "certificate-identity", Category: identityCategory, Usage: "`SUBJECT` of the signer's certificate: an e-mail address, or the URL of a workflow"},
	{Name: "certificate-identity-regexp", Category: identityCategory, Usage: "`RE2` that matches the whole subject"},
	{Name: "certificate-oidc-issuer", Category: identityCategory, Usage: "`URL` of the subject's identity provider"},
	{Name: "certificate-oidc-issuer-regexp", Category: identityCategory, Usage: "`RE2` that matches the whole URL"},
	{Name: "trusted-root", Category: identityCategory, Usage: "trusted_root.json `FILE` with the trusted certificate authorities and logs"},
	{Name: "insecure-ignore-tlog", Value: false, Category: identityCategory, Usage: "accept an identity's signature without a transparency log entry; it then needs a signed timestamp"},
}

const identityCategory = "Identity"

// identity is the identity that the flags require; nil if they require none.
func (c *call) identity() (signing.Verifier, error) {
	subject, issuer := c.String("certificate-identity"), c.String("certificate-oidc-issuer")
	o := keyless.IdentityOptions{Name: cmp.Or(subject, c.String("certificate-identity-regexp")), Unlogged: c.Bool("insecure-ignore-tlog")}
	if o.Name == "" && issuer == "" && c.String("certificate-oidc-issuer-regexp") == "" &&
		(c.String("trusted-root") == "" || c.getenv("LONGSHORE_TRUSTED_ROOT") != "") { // the variable may be meant for other commands
		return nil, nil
	}
	var err error
	if o.Subject, err = pattern("certificate-identity", c); err != nil {
		return nil, err
	}
	if o.Issuer, err = pattern("certificate-oidc-issuer", c); err != nil {
		return nil, err
	}
	file := c.String("trusted-root")
	if file == "" {
		return nil, c.misused("an identity needs --trusted-root: nothing is downloaded")
	}
	root, err := readRoot(file)
	if err != nil {
		return nil, err
	}
	return keyless.NewIdentity(o, root)
}

// pattern reads a flag with a name, or the one with a regular expression.
func pattern(flag string, c *call) (keyless.Pattern, error) {
	exact, expr := c.String(flag), c.String(flag+"-regexp")
	switch {
	case exact != "" && expr != "":
		return keyless.Pattern{}, c.misused("--%[1]s and --%[1]s-regexp exclude each other", flag)
	case exact == "" && expr == "":
		return keyless.Pattern{}, c.misused("--%s is missing: an identity is a subject and its issuer", flag)
	case expr != "":
		p, err := keyless.Matching(expr)
		return p, named("--"+flag+"-regexp", err)
	}
	return keyless.Exact(exact)
}
