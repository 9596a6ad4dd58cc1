package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/sign/identity"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/signing/trust"
)

const keylessCategory = "Keyless signing"

// signFlags configure signing.
var signFlags = slices.Concat(keyFlags, []cmdline.Flag{
	{Name: "signature-format", Value: string(signing.FormatBundle), OneOf: []string{string(signing.FormatBundle), string(signing.FormatLegacy), string(signing.FormatBoth)}, Usage: "`FORMAT` of the signature: bundle, legacy or both"},
}, keylessFlags)

var keyFlags = []cmdline.Flag{
	{Name: "key", Usage: "private `KEY` to sign with: a file, pkcs11:…, or a key service: awskms://…"},
	keyPasswordFlag,
}

// signersFlags are signFlags for several signers.
var signersFlags = slices.Concat([]cmdline.Flag{
	{Name: "key", Value: []string(nil), Usage: "private `KEY` to sign with: a file, pkcs11:…, or a key service: awskms://…; may be repeated"},
	{Name: "key-password-file", Value: []string(nil), Usage: "`FILE` with the password or PIN of all keys, or one for each --key in their order; default: LONGSHORE_KEY_PASSWORD, COSIGN_PASSWORD or a prompt for each"},
}, signFlags[len(keyFlags):])

var keyPasswordFlag = cmdline.Flag{Name: "key-password-file", Usage: "`FILE` with the key's password or PIN; default: LONGSHORE_KEY_PASSWORD, COSIGN_PASSWORD or a prompt"}

// keylessFlags are spelled as in cosign.
var keylessFlags = []cmdline.Flag{
	{Name: "keyless", Value: false, Category: keylessCategory, Usage: "sign with the identity of a token and a short-lived certificate instead of a key"},
	{Name: "identity-token", Category: keylessCategory, Usage: "`TOKEN` or file with one; else SIGSTORE_ID_TOKEN, or that of the job: GitHub Actions, Google Cloud, SPIFFE"},
	{Name: "signing-config", Category: keylessCategory, Usage: "`FILE` with the services (signing_config.v0.2.json), instead of the URL flags"},
	{Name: "fulcio-url", Category: keylessCategory, Usage: "`URL` of the certificate authority"},
	{Name: "rekor-url", Category: keylessCategory, Usage: "`URL` of the transparency log (Rekor version 1)"},
	{Name: "timestamp-server-url", Category: keylessCategory, Usage: "`URL` of the timestamp authority, with its path"},
	{Name: "oidc-issuer", Category: keylessCategory, Usage: "`URL` of the required identity provider of the token"},
	{Name: "trusted-root", Category: keylessCategory, Usage: "trusted_root.json `FILE` to recognise your earlier signatures"},
}

// unsignedFlag is for commands that publish the states of many devices.
var unsignedFlag = cmdline.Flag{Name: "unsigned", Value: false, Usage: "publish without signatures; devices refuse such states unless their policy has allowUnsigned"}

// claimFlag names annotations that are signed with the digest.
var claimFlag = cmdline.Flag{Name: "annotation", Value: []string(nil), Alias: "a", Usage: "`KEY=VALUE` annotation to sign with the digest; may be repeated"}

// signer signs while an artifact is published.
type signer struct {
	*sign.Signer
	made []signing.Signature
}

var _ release.FreshSigner = (*signer)(nil)

// Sign implements release.Signer.
func (s *signer) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	made, err := s.Signer.Sign(ctx, repo, subject)
	s.made = made
	return err
}

// SignFresh implements release.FreshSigner.
func (s *signer) SignFresh(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	made, err := s.Signer.SignFresh(ctx, repo, subject)
	s.made = made
	return err
}

// whoSigns rejects a command line without a signer, or with contradictory ones.
func (c *call) whoSigns() error {
	switch signs := c.String("key") != "" || c.Bool("keyless"); {
	case signs && c.Bool("unsigned"):
		return c.misused("--unsigned excludes --key and --keyless")
	case c.Bool("propose") && c.Bool("unsigned"):
		return c.misused("--propose excludes --unsigned: a proposal is for others to sign; leave out --unsigned to propose without a signature of your own")
	case !signs && !c.Bool("unsigned") && !c.Bool("dry-run") && !c.Bool("propose"):
		return c.misused("use --key, --keyless or --unsigned")
	}
	return nil
}

// newSigner makes the signer of --key or --keyless; nil without them. With once it does not repeat an existing signature.
func (c *call) newSigner(once bool) (*signer, error) {
	key, asIdentity := c.String("key"), c.Bool("keyless")
	switch {
	case key != "" && asIdentity:
		return nil, outcome.Usagef("", "--key excludes --keyless")
	case key == "" && !asIdentity:
		return nil, c.onlyWithKeyless()
	}
	o, err := c.signOptions(once)
	switch {
	case err != nil:
		return nil, err
	case asIdentity:
		return c.identitySigner(o)
	}
	return c.keySigner(key, c.String("key-password-file"), o)
}

// newSigners makes a signer of each --key, and one of --keyless.
func (c *call) newSigners() (all []trust.Signatory, err error) {
	keys, passwords := c.StringSlice("key"), c.StringSlice("key-password-file")
	if n := len(passwords); n > 1 && n != len(keys) {
		return nil, outcome.Usagef("", "%d --key and %d --key-password-file: use one file for all keys, or one for each", len(keys), n)
	}
	if !c.Bool("keyless") {
		if err := c.onlyWithKeyless(); err != nil {
			return nil, err
		}
	}
	o, err := c.signOptions(true)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		password := ""
		if n := len(passwords); n > 0 {
			password = passwords[min(i, n-1)]
		}
		s, err := c.keySigner(key, password, o)
		if err != nil {
			return nil, err
		}
		all = append(all, recording{s})
	}
	if c.Bool("keyless") {
		s, err := c.identitySigner(o)
		if err != nil {
			return nil, err
		}
		all = append(all, recording{s})
	}
	return all, nil
}

// signOptions are the options of every signer.
func (c *call) signOptions(once bool) (sign.Options, error) {
	at, err := c.signingTime()
	return sign.Options{Format: signing.Format(c.String("signature-format")), Annotations: c.claims, Time: at, Once: once, Place: c.signatureStore()}, err
}

// keySigner signs with a key. password is the file with its password; "" means the environment or a prompt.
func (c *call) keySigner(key, password string, o sign.Options) (*signer, error) {
	if remotekey.Is(key) {
		return c.remoteSigner(key, password, o)
	}
	return c.fileSigner(key, password, o)
}

// signingTime is the time in signatures.
func (p *program) signingTime() (time.Time, error) {
	at, err := p.created()
	if at.IsZero() {
		at = p.now().UTC().Truncate(time.Second)
	}
	return at, err
}

// onlyWithKeyless rejects flags without effect. Their variables may be set for other commands.
func (c *call) onlyWithKeyless() error {
	for _, name := range []string{"identity-token", "signing-config", "fulcio-url", "rekor-url", "timestamp-server-url", "oidc-issuer"} {
		if c.String(name) != "" && c.getenv(variable(name)) == "" {
			return outcome.Usagef("", "--%s needs --keyless", name)
		}
	}
	return nil
}

func (p *program) fileSigner(file, passwordFile string, o sign.Options) (*signer, error) {
	private, err := bounded.File(os.Open, file, signing.MaxKeyBytes)
	if errors.Is(err, os.ErrNotExist) {
		err = fault.WithHint(err, "create one: longshore key generate NAME writes NAME.key and NAME.pub")
	}
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	if err := sign.CheckKeyFile(private); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	password, err := p.keyPassword(passwordFile, file, false)
	if err != nil {
		return nil, err
	}
	if err := p.checkOpen(file, len(password) == 0); err != nil {
		return nil, err
	}
	hand, err := p.unlock(private, password)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	o.Name = keyName(file)
	s, err := sign.NewKeySigner(hand, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &signer{Signer: s}, nil
}

// checkOpen rejects a key file that every user can read, unless a password protects it.
func (p *program) checkOpen(file string, noPassword bool) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o004 != 0 {
		if noPassword {
			err := fmt.Errorf("%s: %w: every user of this machine can read it (mode %04o), and it has no password", file, fault.ErrDenied, mode)
			return fault.WithHint(err, "chmod 600 "+file+", or give the key a password")
		}
		fmt.Fprintf(p.stderr, "notice: every user of this machine can read %s (mode %04o); only its password protects it\n", file, mode)
	}
	return nil
}

// remoteSigner signs with a key in a token or a key management service.
func (c *call) remoteSigner(ref, passwordFile string, o sign.Options) (*signer, error) {
	key, err := remotekey.Open(c.Context, ref, remotekey.Options{
		PKCS11Module: c.getenv("COSIGN_PKCS11_MODULE_PATH"),
		PIN: func(token string) ([]byte, error) {
			if pin, set := c.lookup("COSIGN_PKCS11_PIN"); set {
				return []byte(pin), nil
			}
			return c.keyPassword(passwordFile, "token "+token, false)
		},
	})
	if err != nil {
		return nil, err
	}
	c.atEnd(func() { _ = key.Close() }) // what was signed is signed
	s, err := sign.NewKeySigner(key, o)
	return &signer{Signer: s}, err
}

// identitySigner signs as the identity of a token.
func (c *call) identitySigner(o sign.Options) (*signer, error) {
	services, err := c.services()
	if err != nil {
		return nil, err
	}
	web := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}}
	c.atEnd(web.CloseIdleConnections)
	token, err := c.identityToken(web)
	if err != nil {
		return nil, err
	}
	if want := c.String("oidc-issuer"); want != "" && want != token.Issuer() {
		return nil, fmt.Errorf("identity token: %w: its issuer is %s, not %s", fault.ErrDenied, token.Issuer(), want)
	}
	seal, err := identity.New(identity.Options{Services: services, Token: token, Client: web})
	if err != nil {
		return nil, err
	}
	o.Name = token.Subject()
	var self signing.Verifier
	if file := c.String("trusted-root"); file != "" {
		if self, err = identitySelf(file, token); err != nil {
			return nil, err
		}
	}
	s, err := sign.NewKeylessSigner(seal, self, o)
	return &signer{Signer: s}, err
}

// identitySelf verifies earlier signatures of the same identity.
func identitySelf(file string, token identity.Token) (signing.Verifier, error) {
	root, err := readRoot(file)
	if err != nil {
		return nil, err
	}
	issuer, err := keyless.Exact(token.Issuer())
	if err != nil {
		return nil, err
	}
	subject, err := keyless.Exact(token.Subject())
	if err != nil {
		return nil, err
	}
	return keyless.NewIdentity(keyless.IdentityOptions{Name: token.Subject(), Issuer: issuer, Subject: subject}, root)
}

// readRoot reads a trusted_root.json.
func readRoot(file string) (*keyless.Root, error) {
	data, err := bounded.File(os.Open, file, keyless.MaxRootBytes)
	if err != nil {
		return nil, err
	}
	root, err := keyless.ParseRoot(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return root, nil
}

// services are those of --signing-config, or of the URL flags.
func (c *call) services() (identity.Services, error) {
	fulcio, rekor, clock := c.String("fulcio-url"), c.String("rekor-url"), c.String("timestamp-server-url")
	file := c.String("signing-config")
	switch {
	case file != "" && fulcio+rekor+clock != "":
		return identity.Services{}, outcome.Usagef("", "--signing-config excludes --fulcio-url, --rekor-url and --timestamp-server-url")
	case file != "":
		data, err := bounded.File(os.Open, file, identity.MaxConfigBytes)
		if err != nil {
			return identity.Services{}, err
		}
		s, err := identity.ParseServices(data, c.now())
		if err != nil {
			return s, fmt.Errorf("%s: %w", file, err)
		}
		return s, nil
	case fulcio == "":
		return identity.Services{}, outcome.Usagef("", "--keyless needs --signing-config, or --fulcio-url with --rekor-url or --timestamp-server-url")
	}
	s := identity.Services{Fulcio: fulcio}
	if rekor != "" {
		s.Logs = []identity.Log{{URL: rekor, Version: 1}}
	}
	if clock != "" {
		s.Clocks = []string{clock}
	}
	return s, s.Check()
}

// identityToken finds the token to sign with.
func (c *call) identityToken(web *http.Client) (identity.Token, error) {
	raw := cmp.Or(c.String("identity-token"), c.getenv("SIGSTORE_ID_TOKEN"))
	if raw == "" {
		token, found, err := identity.Ambient(c.Context, web, c.now())
		if err != nil || found {
			return token, err
		}
		err = fmt.Errorf("sign with an identity: %w: no identity token", fault.ErrUnauthenticated)
		return identity.Token{}, fault.WithHint(err, "use --identity-token or SIGSTORE_ID_TOKEN; in GitHub Actions the job needs the permission id-token: write")
	}
	if strings.Count(raw, ".") != 2 || len(raw) < 100 { // tokens are longer
		data, err := bounded.File(os.Open, raw, identity.MaxTokenBytes)
		if err != nil {
			return identity.Token{}, fmt.Errorf("identity token: %w", err)
		}
		raw = string(data)
	}
	return identity.ParseToken(raw, c.now())
}
