package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/report"
	"github.com/longshore-dev/longshore/agent/wipe"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing/trust"
)

const (
	maxJoinToken  = 4 << 10 // bytes of a file with a join token
	bundleTimeout = 30 * time.Second
)

var enrollCommand = cmdline.Command{
	Name:  "enroll",
	Usage: "get this device's certificate and configuration from a manager",
	Args:  "URL",
	About: "Creates the device's key, in a TPM 2.0 if there is one, and asks the manager at URL for a certificate. Shows the fingerprint of\n" +
		"the key and waits until an operator approves it there (longshore-fleet devices approve). Then writes agent.yaml, trust.yaml and\n" +
		"the credentials. If it is interrupted, run it again: the key stays the same.\n\n" +
		"The device authenticates the manager first: by its fingerprint, which the manager logs when it starts, by its trust bundle, or\n" +
		"by the fingerprint in a join token. On a terminal it shows the fingerprint and asks, if none of these is given.\n\n" +
		"Examples:\n" +
		"  longshore-agent enroll https://fleet.acme.example:8443 --device press-07 --expect-manager sha256:9f1c…\n" +
		"  longshore-agent enroll https://fleet.acme.example:8443 --join-token-file /media/stick/press-07.join --run\n" +
		"  longshore-agent enroll --print-fingerprint",
	Flags: append([]cmdline.Flag{
		{Name: "device", Usage: "`ID` that this device should get; default: the operator decides", Env: env("DEVICE")},
		{Name: "expect-manager", Usage: "`SHA256` fingerprint of the manager's authority", Env: env("EXPECT_MANAGER")},
		{Name: "trust-bundle", Usage: "`FILE` with the manager's trust bundle (SPIFFE's JSON, or PEM)", Env: env("TRUST_BUNDLE")},
		{Name: "bundle-url", Usage: "https `URL` of the manager's trust bundle, read once", Env: env("BUNDLE_URL")},
		{Name: "bundle-ca-file", Usage: "PEM `FILE` with the CA of the server at --bundle-url (default: the system's)", Env: env("BUNDLE_CA_FILE")},
		{Name: "manager", Usage: "SPIFFE `ID` of the manager (default: any manager of the trust domain)", Env: env("MANAGER")},
		{Name: "join-token-file", Usage: "`FILE` with a join token: the device is enrolled without an operator", Env: env("JOIN_TOKEN_FILE")},
		{Name: "expect-trust", Usage: "`SHA256` digest that the first trust policy must have", Env: env("EXPECT_TRUST")},
		{Name: "report-key", Usage: "where the device's key is: `PLACE` is file, tpm, tpm:DEVICE, or pkcs11:… for a token (default: tpm if there is one, else file)", Env: env("REPORT_KEY")},
		{Name: "allow-wipe", Value: false, Usage: "the manager may have this device delete everything when it is removed there", Env: env("ALLOW_WIPE")},
		{Name: "print-fingerprint", Value: false, Usage: "create the key if there is none, print its fingerprint and exit", Env: env("PRINT_FINGERPRINT")},
		{Name: "qr", Value: false, Usage: "show the fingerprint also as a QR code", Default: "on a terminal", Env: env("QR")},
		{Name: "run", Value: false, Usage: "run the agent afterwards; also if the device is enrolled already", Env: env("RUN_AGENT")},
		outputFlag,
	}, deviceFlags...),
	Run: enrollDevice,
}

// enrollee is a device that is being enrolled.
type enrollee struct {
	c         *cmdline.Context
	dir       string // of agent.yaml
	key       *report.Key
	place     report.Place
	print     digest.Digest // of the key
	options   enroll.Options
	token     string
	bundleURL string
}

// enrolled is the result in "enroll -o json". The keys are stable.
type enrolled struct {
	Device      string        `json:"device"`
	Manager     string        `json:"manager"`
	Fingerprint digest.Digest `json:"fingerprint"`
	NotAfter    time.Time     `json:"certificateNotAfter"`
	Trust       digest.Digest `json:"trustPolicy,omitempty"`
	State       string        `json:"state,omitempty"`
	Files       []string      `json:"files"`
}

func enrollDevice(c *cmdline.Context) error {
	if n := len(c.Args); n > 1 || n == 0 && !c.Bool("print-fingerprint") {
		return outcome.Usagef("enroll", "name the URL of one manager")
	}
	dir, err := filepath.Abs(c.String("config-dir"))
	if err != nil {
		return fmt.Errorf("find %s: %w", c.String("config-dir"), err)
	}
	agentFile := filepath.Join(dir, "agent.yaml")
	if _, err := os.Lstat(agentFile); err == nil && c.Bool("run") && !c.Bool("force") {
		return runEnrolled(agentFile)
	}
	if !c.Bool("print-fingerprint") {
		if err := unwritten(c, agentFile); err != nil {
			return err
		}
	}
	e := &enrollee{c: c, dir: dir}
	ask := false
	if !c.Bool("print-fingerprint") { // before a key is made: what cannot work leaves nothing behind
		if ask, err = e.authenticate(); err != nil {
			return err
		}
	}
	if err := e.makeKey(); err != nil {
		return err
	}
	if c.Bool("print-fingerprint") {
		_, err := fmt.Fprintln(c.Out, e.print)
		return err
	}
	e.options.Key = e.key
	if ask {
		if err := e.confirm(); err != nil {
			return err
		}
	}
	answer, manager, err := e.await()
	if err != nil {
		return err
	}
	result, err := e.take(answer, manager)
	if err != nil {
		return err
	}
	if err := c.Show(result, func(w io.Writer) {
		fmt.Fprintf(w, "  enrolled   %s at %s\n  wrote      %s\n", result.Device, result.Manager, strings.Join(result.Files, ", "))
		if result.Trust != "" {
			fmt.Fprintf(w, "  trusts     the policy %s\n", result.Trust)
		}
	}); err != nil || !c.Bool("run") {
		return err
	}
	return runEnrolled(agentFile)
}

// runEnrolled goes on as the agent.
func runEnrolled(agentFile string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("run the agent: %w", syscall.Exec(self, []string{self, "run", "--config", agentFile}, os.Environ()))
}

// makeKey makes or opens the device's key. A key that is there stays: it is the device's identity.
func (e *enrollee) makeKey() (err error) {
	e.place.File = filepath.Join(e.dir, config.DefaultKeyFile)
	if at := e.c.String("report-key"); at == "" {
		e.place, err = report.Choose(e.place.File, config.DefaultTPM)
	} else {
		if e.place.TPM, e.place.Token, err = config.KeyPlace(at); err != nil {
			err = outcome.Usagef("enroll", "--report-key: %v; %s", err, config.KeyPlaces)
		}
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return err
	}
	if e.key, _, err = e.place.Make(); err != nil {
		return err
	}
	e.print, err = identity.Fingerprint(e.key.Public())
	return err
}

// authenticate finds out by what the manager is authenticated; ask: a person has to confirm its fingerprint.
func (e *enrollee) authenticate() (ask bool, err error) {
	c := e.c
	e.options = enroll.Options{
		URL: c.Arg(), Now: time.Now, UserAgent: "longshore-agent/" + build.Version(), Proxy: http.ProxyFromEnvironment,
		Trust: enroll.Trust{Manager: c.String("manager"), Pin: digest.Digest(c.String("expect-manager"))},
	}
	if err := enroll.CheckURL(e.options.URL); err != nil {
		return false, err
	}
	t := &e.options.Trust
	if file := c.String("join-token-file"); file != "" {
		data, err := bounded.File(os.Open, file, maxJoinToken)
		if err != nil {
			return false, err
		}
		e.token = strings.TrimSpace(string(data))
		if parts := strings.Split(e.token, "_"); len(parts) == 4 && t.Pin == "" {
			t.Pin = digest.NewDigestFromEncoded(digest.SHA256, parts[3])
		}
	}
	if t.Pin != "" && t.Pin.Validate() != nil {
		return false, outcome.Usagef("enroll", "--expect-manager %s: write sha256: and 64 hexadecimal digits", t.Pin)
	}
	if file := c.String("trust-bundle"); file != "" {
		t.Anchors, err = bounded.File(os.Open, file, identity.MaxBundle)
		return false, err
	}
	switch e.bundleURL = c.String("bundle-url"); {
	case e.bundleURL != "" && !strings.HasPrefix(e.bundleURL, "https://"):
		return false, outcome.Usagef("enroll", "--bundle-url must begin with https://")
	case e.bundleURL != "" || t.Pin != "":
		return false, nil // the bundle is read at the first attempt
	case cmdline.Terminal(e.c.In) == nil || cmdline.Terminal(e.c.Err) == nil:
		return false, outcome.Usagef("enroll", "give --expect-manager, --trust-bundle, --bundle-url or --join-token-file: the device must know its manager")
	}
	return true, nil
}

// confirm lets a person compare the manager's fingerprint: nothing else says who it is.
func (e *enrollee) confirm() error {
	anchors, err := enroll.Anchors(e.c.Context, e.options)
	if err != nil {
		return err
	}
	bundle, err := identity.ParseBundle("of the manager", anchors, "any") // the trust domain shows in the manager's certificate
	if err != nil {
		return err
	}
	pin, err := enroll.ManagerFingerprint(bundle)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.c.Err, "The manager at %s has the fingerprint\n\n  %s\n\nCompare it with the one that the manager logs when it starts. Is it the same? (yes/no) ", e.options.URL, pin)
	line := make([]byte, 16)
	n, err := e.c.In.Read(line)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(string(line[:n])) != "yes" {
		return fmt.Errorf("the manager is not confirmed: %w", fault.ErrUnauthenticated)
	}
	e.options.Trust.Anchors, e.options.Trust.Pin = anchors, pin
	return nil
}

// await asks the manager until it has decided.
func (e *enrollee) await() (enroll.Answer, identity.Name, error) {
	request, err := enroll.NewRequest(e.key)
	if err != nil {
		return enroll.Answer{}, identity.Name{}, err
	}
	host, _ := os.Hostname() // only for people
	kind := "file"
	switch {
	case e.place.TPM != "":
		kind = "tpm"
	case e.place.Token != "":
		kind = "pkcs11"
	}
	request.Device, request.Token = e.c.String("device"), e.token
	request.About = enroll.About{Hostname: host, Agent: build.Version(), Key: kind}
	e.showKeyToApprove()
	var client *enroll.Client
	var last string
	answer, err := enroll.Wait(e.c.Context, func(ctx context.Context) (enroll.Answer, error) {
		if client == nil {
			if err := e.readAnchors(ctx); err != nil {
				return enroll.Answer{}, err
			}
			var err error
			if client, err = enroll.New(e.options); err != nil {
				return enroll.Answer{}, err
			}
		}
		return client.Ask(ctx, request)
	}, func(a enroll.Answer, err error) {
		text := "waiting for approval"
		if err != nil {
			text = err.Error() + "; trying again"
			if hint := fault.Hint(err); hint != "" {
				text += "\n  hint: " + hint
			}
		}
		if text != last {
			fmt.Fprintln(e.c.Err, text)
		}
		last = text
	})
	if client == nil {
		return answer, identity.Name{}, err
	}
	defer client.Close()
	switch {
	case err != nil:
	case answer.Status == enroll.Denied && answer.Reason != "":
		err = fmt.Errorf("the manager denied this device: %s: %w", answer.Reason, fault.ErrDenied)
	case answer.Status == enroll.Denied:
		err = fmt.Errorf("the manager denied this device: %w", fault.ErrDenied)
	case answer.Status == enroll.Removed:
		err = fault.WithHint(fmt.Errorf("this device was removed from the manager: %w", fault.ErrDenied),
			"if it is to come back: longshore-fleet devices approve ID --fingerprint "+e.print.String())
	case answer.Grant == nil:
		err = fmt.Errorf("the manager approved this device and sent nothing: %w", fault.ErrInvalid)
	}
	return answer, client.Manager(), err
}

// readAnchors reads the trust bundle where it is not known yet.
func (e *enrollee) readAnchors(ctx context.Context) (err error) {
	t := &e.options.Trust
	switch {
	case t.Anchors != nil:
	case e.bundleURL != "":
		t.Anchors, err = readBundle(ctx, e.bundleURL, e.c.String("bundle-ca-file"))
	default: // whoever sends it: only authorities with the expected fingerprint count
		t.Anchors, err = enroll.Anchors(ctx, e.options)
	}
	return err
}

// readBundle reads a trust bundle from a server that is authenticated as web servers are.
func readBundle(ctx context.Context, address, caFile string) ([]byte, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := bounded.File(os.Open, caFile, identity.MaxBundle)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s has no certificate in PEM: %w", caFile, fault.ErrInvalid)
		}
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config}
	defer t.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("trust bundle %s: %w: %w", address, fault.ErrInvalid, err)
	}
	response, err := (&http.Client{Transport: t, Timeout: bundleTimeout}).Do(request)
	if certificate := (*tls.CertificateVerificationError)(nil); errors.As(err, &certificate) {
		return nil, fault.WithHint(fmt.Errorf("trust bundle: %w: %w", fault.ErrUnauthenticated, err), "name the CA of this server with --bundle-ca-file; or compare the clocks of both")
	}
	if err != nil {
		return nil, fmt.Errorf("trust bundle: %w: %w", fault.ErrTemporary, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("trust bundle %s: %s: %w", address, response.Status, fault.ErrTemporary)
	}
	return bounded.Read(response.Body, identity.MaxBundle)
}

// showKeyToApprove tells the operator what to compare.
func (e *enrollee) showKeyToApprove() {
	approve := fmt.Sprintf("%s --fingerprint %s", cmp.Or(e.c.String("device"), "ID"), e.print)
	if e.token == "" {
		fmt.Fprintf(e.c.Err, "The key of this device has the fingerprint\n\n  %s\n\nApprove it at the manager:\n\n  longshore-fleet devices approve %s\n\n", e.print, approve)
		if cmdline.Terminal(e.c.Err) != nil || e.c.Bool("qr") {
			_ = writeQR(e.c.Err, approve) // the text stands above
		}
	}
}

// take checks and writes what the manager sent. agent.yaml is the last file: without it the device is not enrolled.
func (e *enrollee) take(answer enroll.Answer, manager identity.Name) (*enrolled, error) {
	g := answer.Grant
	credentials, err := g.Check(enroll.Expected{Key: e.key, Device: e.c.String("device"), Manager: manager, Now: time.Now()})
	if err != nil {
		return nil, err
	}
	own := enroll.Dir(identityDir(e.c.String("data-dir")))
	agentFile, trustFile, rootFile := filepath.Join(e.dir, "agent.yaml"), filepath.Join(e.dir, "trust.yaml"), filepath.Join(e.dir, artifacts.TrustedRootFile)
	agent, err := agentDocument(e.c, e.placed(own, g, credentials.SVID.Name.Client))
	if err != nil {
		return nil, err
	}
	cfg, err := config.Parse(agentFile, agent)
	if err != nil {
		return nil, err
	}
	result := &enrolled{
		Device: credentials.SVID.Name.Client, Manager: manager.String(), Fingerprint: e.print, NotAfter: credentials.SVID.NotAfter, State: g.Source.Registry,
		Files: []string{agentFile, trustFile},
	}
	if err := e.checkTrust(g.Trust, trustFile); err != nil {
		return nil, err
	}
	if err := own.Save(g); err != nil {
		return nil, err
	}
	if t := g.Trust; t != nil {
		result.Trust = t.Digest
		if t.Root != "" {
			if err := files.Write(rootFile, []byte(t.Root), 0o644); err != nil {
				return nil, err
			}
		}
		if err := files.Write(trustFile, []byte(t.Document), 0o644); err != nil {
			return nil, err
		}
	}
	if err := wipe.Forget(cfg.DataDir); err != nil { // it was for the device that this one was before
		return nil, err
	}
	return result, files.Write(agentFile, agent, 0o644)
}

// checkTrust checks the first trust policy; without one the device must have its own.
func (e *enrollee) checkTrust(t *enroll.Trusted, file string) error {
	want := digest.Digest(e.c.String("expect-trust"))
	if t == nil {
		_, err := readPolicy(file)
		if errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(fmt.Errorf("the manager sends no trust policy, and there is no %s: %w", file, fault.ErrNotFound), "put the trust policy there first; or name one in the manager's enroll.yaml")
		}
		return err
	}
	if want != "" && want != t.Digest {
		return fault.WithHint(fmt.Errorf("the trust policy from the manager is %s, and %s is expected: %w", t.Digest, want, fault.ErrDigestMismatch), "check with whoever maintains the policy which one is right")
	}
	var root []byte
	if t.Root != "" {
		root = []byte(t.Root)
	}
	_, err := trust.ParseTravelling([]byte(t.Document), root)
	return err
}

// placed is the device's place in the fleet as the manager granted it. Flags of the device come first.
func (e *enrollee) placed(own enroll.Dir, g *enroll.Grant, device string) place {
	at := place{device: device, state: g.Source.Registry, authFile: absolute(e.c.String("registry-config")), caFile: absolute(e.c.String("ca-file"))}
	credentials := section("certFile", own.Certificate(), "trustBundle", own.Bundle())
	if g.Source.Margo {
		at.source = append(emit.Of("margo", g.Manager), credentials...)
	} else {
		at.fleet = append(emit.Of("url", g.Manager), credentials...)
	}
	at.enrollment = emit.Of("interval", strings.TrimSuffix(config.DefaultEnrollmentInterval.String(), "0s"))
	if e.c.Bool("allow-wipe") {
		at.enrollment = append(at.enrollment, emit.Of("allowWipe", true)...)
	}
	switch {
	case e.place.TPM != "":
		at.report = emit.Of("key", "tpm:"+e.place.TPM)
	case e.place.Token != "":
		at.report = emit.Of("key", e.place.Token)
	}
	if at.authFile == "" && len(g.Registries) > 0 {
		at.authFile = own.Logins()
	}
	if at.caFile == "" && g.RegistryCA != "" {
		at.caFile = own.RegistryCA()
	}
	return at
}

// identityDir is where an enrolled device has what its manager sent.
func identityDir(dataDir string) string {
	return filepath.Join(absolute(cmp.Or(dataDir, config.DefaultDataDir)), "identity")
}
