package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/wipe"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/workloadapi"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// workloadWait is how long the first answer of the Workload API is waited for.
const workloadWait = 10 * time.Second

var initCommand = cmdline.Command{
	Name:  "init",
	Usage: "write the configuration of this device",
	About: "Writes agent.yaml and trust.yaml. The public key is copied into trust.yaml, so a device needs only these\n" +
		"two files. With --policy, trust.yaml is a copy of that file with the keys that it names; longshore trust init\n" +
		"creates a policy with updates from the registry. With --margo a Margo manager defines what the device runs:\n" +
		"with --state only states that are signed in that repository, with --allow-unsigned every State Manifest of the manager.\n" +
		"Existing files are kept unless --force is given.\n" +
		"Also creates the device's own key, device.key or one in the TPM or token, and never replaces one.\n\n" +
		"Examples:\n" +
		"  longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub\n" +
		"  longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub \\\n" +
		"    --fleet-url https://fleet.acme.example --fleet-token-file /etc/longshore/token\n" +
		"  longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --policy trust.yaml\n" +
		"  longshore-agent init --device press-07 --margo https://wfm.acme.example --allow-unsigned --margo-cert-file press-07.crt \\\n" +
		"    --margo-key-file press-07.key --margo-trust-bundle bundle.json",
	Flags: append([]cmdline.Flag{
		{Name: "device", Usage: "`ID` of this device", Env: env("DEVICE")},
		{Name: "state", Usage: "`REPOSITORY` of the device states, oci://host/path", Env: env("STATE")},
		{Name: "margo", Usage: "`URL` of the Margo manager that defines what this device runs", Env: env("MARGO")},
		{Name: "margo-cert-file", Usage: "PEM `FILE` with the certificate of this device for the manager", Env: env("MARGO_CERT_FILE")},
		{Name: "margo-key-file", Usage: "PEM `FILE` with the key of this certificate", Env: env("MARGO_KEY_FILE")},
		{Name: "margo-trust-bundle", Usage: "`FILE` with the trust bundle of the manager's trust domain", Env: env("MARGO_TRUST_BUNDLE")},
		{Name: "margo-workload-api", Usage: "in place of these three: the `SOCKET` of the SPIFFE Workload API, unix:///run/spire/agent.sock", Env: env("MARGO_WORKLOAD_API")},
		{Name: "margo-token-file", Usage: "`FILE` with the bearer token of this device, in place of a certificate", Env: env("MARGO_TOKEN_FILE")},
		{Name: "margo-ca-file", Usage: "PEM `FILE` with the CA of the manager, for a token", Env: env("MARGO_CA_FILE")},
		{Name: "allow-unsigned", Value: false, Usage: "accept the manager's State Manifests, which are not signed; shown in every status", Env: env("ALLOW_UNSIGNED")},
		{Name: "key", Value: []string(nil), Usage: "public key `FILE` whose signature a state needs; repeat for several", Env: env("PUBLIC_KEY")},
		{Name: "policy", Usage: "trust.yaml `FILE` for the device, instead of one created from --key", Env: env("POLICY")},
		{Name: "scope", Usage: "`PATTERN` of the repositories that the keys may sign for (default: the path above the state's repository)", Env: env("SCOPE")},
		{Name: "fleet-url", Usage: "`URL` of the fleet endpoint", Env: env("FLEET_URL")},
		{Name: "fleet-token-file", Usage: "`FILE` with the bearer token of this device", Env: env("FLEET_TOKEN_FILE")},
		{Name: "fleet-ca-file", Usage: "PEM `FILE` with the CA of the fleet endpoint", Env: env("FLEET_CA_FILE")},
		{Name: "report-registry", Value: false, Usage: "push the device's current state to the registry, signed with the device's key", Env: env("REPORT_REGISTRY")},
		{Name: "report-registry-config", Usage: "`FILE` with registry credentials that may push these reports, in Docker's format", Env: env("REPORT_REGISTRY_CONFIG")},
		{Name: "report-key", Usage: "where the device's own key is: `PLACE` is file, tpm or tpm:DEVICE for a TPM 2.0, or pkcs11:… for a token", Default: "file", Env: env("REPORT_KEY")},
	}, deviceFlags...),
	Run: initialise,
}

// deviceFlags say what this device has, and where the configuration is written.
var deviceFlags = []cmdline.Flag{
	{Name: "ca-file", Usage: "PEM `FILE` with the CA of the registry", Env: env("CA_FILE")},
	{Name: "registry-config", Usage: "`FILE` with registry credentials, in Docker's format", Env: env("REGISTRY_CONFIG")},
	{Name: "plain-http", Value: []string(nil), Usage: "registry `HOST` that is accessed without TLS; repeat for several", Env: env("PLAIN_HTTP_HOSTS")},
	{Name: "containerd", Usage: "containerd's `SOCKET`", Env: env("CONTAINERD")},
	{Name: "containerd-namespace", Usage: "`NAME` of the namespace in containerd", Env: env("CONTAINERD_NAMESPACE")},
	{Name: "network-table", Usage: "`NAME` of the nftables table, and of the interfaces' prefix", Env: env("NETWORK_TABLE")},
	{Name: "network-pool", Usage: "`RANGE` of addresses for containers", Env: env("NETWORK_POOL")},
	{Name: "data-dir", Usage: "`DIR` for data that survives a reboot", Env: env("DATA_DIR")},
	{Name: "run-dir", Usage: "`DIR` for data that does not survive a reboot", Env: env("RUN_DIR")},
	{Name: "poll", Value: time.Duration(0), Usage: "`TIME` between two polls of the registry", Default: config.DefaultInterval.String(), Env: env("POLL")},
	{Name: "config-dir", Usage: "`DIR` to write to", Value: filepath.Dir(config.DefaultPath), Env: env("CONFIG_DIR")},
	{Name: "force", Value: false, Usage: "replace existing files", Env: env("FORCE")},
}

func initialise(c *cmdline.Context) error {
	if err := initUsage(c); err != nil {
		return err
	}
	dir, err := filepath.Abs(c.String("config-dir"))
	if err != nil {
		return fmt.Errorf("find %s: %w", c.String("config-dir"), err)
	}
	agentFile, trustFile := filepath.Join(dir, "agent.yaml"), filepath.Join(dir, "trust.yaml")
	if err := unwritten(c, agentFile, trustFile); err != nil {
		return err
	}
	policy, root, err := trustDocument(c)
	if err != nil {
		return err
	}
	agent, err := agentDocument(c, placeOf(c))
	if err != nil {
		return err
	}
	// What is written must be readable: a slip in a flag is told now and not at the first start of a device far away.
	cfg, err := config.Parse(agentFile, agent)
	if err != nil {
		return err
	}
	if _, err := trust.ParseTravelling(policy, root); err != nil {
		return err
	}
	if err := wipe.Forget(cfg.DataDir); err != nil { // it was for the device that this one was before
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	key, made, err := keyPlace(cfg).Make() // one that is there stays: the centre knows it
	if err != nil {
		return err
	}
	type file struct {
		name string
		text []byte
	}
	all := []file{{trustFile, policy}, {agentFile, agent}}
	if root != nil {
		all = append([]file{{filepath.Join(dir, artifacts.TrustedRootFile), root}}, all...)
	}
	for _, f := range all {
		if err := files.Write(f.name, f.text, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.Err, "  wrote %s, %s\n", agentFile, trustFile)
	if made {
		fmt.Fprintf(c.Err, "  created the device's key; its public key is in %s\n", key.PublicFile)
	}
	return nil
}

// initUsage refuses flags that leave open where desired state comes from, or who must have signed it.
func initUsage(c *cmdline.Context) error {
	keys, policy, unsigned := c.IsSet("key"), c.IsSet("policy"), c.Bool("allow-unsigned")
	switch {
	case !c.IsSet("device"):
		return outcome.Usagef("init", "--device is missing")
	case !c.IsSet("state") && !c.IsSet("margo"):
		return outcome.Usagef("init", "--state is missing, or --margo")
	case keys && policy, !keys && !policy && !unsigned:
		if !c.IsSet("state") {
			return outcome.Usagef("init", "the manager's State Manifests are not signed: accept them with --allow-unsigned, or give --state and --key")
		}
		return outcome.Usagef("init", "give --key, or --policy")
	case unsigned && (c.IsSet("state") || !c.IsSet("margo")):
		return outcome.Usagef("init", "--allow-unsigned is for --margo without --state")
	case unsigned && policy:
		return outcome.Usagef("init", "--allow-unsigned and --policy exclude each other: the policy says so itself")
	case keys && !c.IsSet("state") && !c.IsSet("scope"):
		return outcome.Usagef("init", "--key needs --scope where there is no --state: the repositories of the components that must be signed")
	}
	return nil
}

// unwritten refuses to replace files without --force.
func unwritten(c *cmdline.Context, names ...string) error {
	if c.Bool("force") {
		return nil
	}
	for _, f := range names {
		if _, err := os.Lstat(f); err == nil {
			return fault.WithHint(fmt.Errorf("write %s: %w: there is one", f, fault.ErrConflict), "add --force to replace it")
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// section is a mapping without its empty members.
func section(pairs ...any) emit.Object {
	return slices.DeleteFunc(emit.Of(pairs...), func(m emit.Member) bool {
		switch v := m.Value.(type) {
		case []any:
			return len(v) == 0
		case emit.Object:
			return len(v) == 0
		}
		return m.Value == ""
	})
}

// place is what agent.yaml says of the device's place in a fleet.
type place struct {
	device, state             string
	source, fleet, enrollment emit.Object
	report                    emit.Object
	authFile, caFile          string
}

// placeOf is what the flags of init say.
func placeOf(c *cmdline.Context) place {
	reports := section("key", c.String("report-key"), "authFile", absolute(c.String("report-registry-config")))
	if c.Bool("report-registry") {
		reports = append(emit.Of("registry", true), reports...)
	}
	return place{
		device: c.String("device"), state: c.String("state"), report: reports,
		source: section("margo", c.String("margo"), "certFile", absolute(c.String("margo-cert-file")), "keyFile", absolute(c.String("margo-key-file")),
			"trustBundle", absolute(c.String("margo-trust-bundle")), "workloadAPI", c.String("margo-workload-api"), "tokenFile", absolute(c.String("margo-token-file")), "caFile", absolute(c.String("margo-ca-file"))),
		fleet:    section("url", c.String("fleet-url"), "tokenFile", absolute(c.String("fleet-token-file")), "caFile", absolute(c.String("fleet-ca-file"))),
		authFile: absolute(c.String("registry-config")), caFile: absolute(c.String("ca-file")),
	}
}

// agentDocument writes only what differs from the defaults: a file that a person reads at a glance.
func agentDocument(c *cmdline.Context, at place) ([]byte, error) {
	interval := ""
	if d := c.Duration("poll"); d != 0 {
		interval = d.String()
	}
	return emit.YAML(section(
		"device", at.device,
		"source", at.source,
		"state", at.state,
		"dataDir", absolute(c.String("data-dir")),
		"runDir", absolute(c.String("run-dir")),
		"containerd", section("address", absolute(c.String("containerd")), "namespace", c.String("containerd-namespace")),
		"poll", section("interval", interval),
		"fleet", at.fleet,
		"enrollment", at.enrollment,
		"report", at.report,
		"network", section("pool", c.String("network-pool"), "table", c.String("network-table")),
		"registry", section("authFile", at.authFile, "caFile", at.caFile, "plainHTTP", emit.Strings(c.StringSlice("plain-http"))),
	))
}

// trustDocument makes a policy of keys, or takes the one of --policy with what it names inside; root is the trusted root
// that goes beside it, nil for none.
func trustDocument(c *cmdline.Context) (document, root []byte, err error) {
	if file := c.String("policy"); file != "" {
		data, err := bounded.File(os.Open, file, maxConfigBytes)
		if err != nil {
			return nil, nil, err
		}
		return trust.Inline(file, data, readKey)
	}
	document, err = keysDocument(c)
	return document, nil, err
}

func keysDocument(c *cmdline.Context) ([]byte, error) {
	scope := c.String("scope")
	if scope == "" {
		scope = strings.TrimPrefix(c.String("state"), "oci://")
		if i := strings.LastIndex(scope, "/"); strings.Count(scope, "/") > 1 {
			scope = scope[:i] + "/**"
		}
	}
	var keys []any
	for _, file := range c.StringSlice("key") {
		data, err := bounded.File(os.Open, file, signing.MaxKeyBytes)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		if _, err := signing.ParsePublicKey(name, data); err != nil {
			return nil, fmt.Errorf("key %s: %w", file, err)
		}
		keys = append(keys, emit.Of("name", name, "pem", emit.Text(strings.ReplaceAll(string(data), "\r\n", "\n"))))
	}
	var rules []any
	if c.Bool("allow-unsigned") {
		name, err := margo.ManagerName(c.String("margo"))
		if err != nil {
			return nil, fmt.Errorf("--margo: %w", err)
		}
		rules = append(rules, emit.Of("scope", name, "allowUnsigned", true))
	}
	switch {
	case len(keys) == 0:
	case c.IsSet("state"):
		rules = append(rules, emit.Of("scope", scope, "keys", keys))
	default:
		rules = append(rules, emit.Of("scope", scope, "artifacts", emit.Strings([]string{trust.KindComponent}), "keys", keys))
	}
	return emit.YAML(emit.Of("rules", rules))
}

var checkConfigCommand = cmdline.Command{
	Name:  "check-config",
	Usage: "check agent.yaml and the files that it names, offline",
	About: "Reads agent.yaml, the files that it names and those in registry.certsDir, and reports all errors in all of these files, each with its\n" +
		"line. The users and groups that agent.yaml names must exist.\n\n" +
		"Examples:\n  longshore-agent check-config\n  longshore-agent check-config --config ./agent.yaml",
	Flags: []cmdline.Flag{configFlag},
	Run:   checkConfig,
}

func checkConfig(c *cmdline.Context) error {
	cfg, configErr := readConfig(c.String("config"))
	if cfg == nil {
		return configErr
	}
	policy, trustErr := readPolicy(cfg.Trust)
	errs := []error{outcome.WithCode(configErr, outcome.Misused), trustErr, cfg.Over(time.Now())}
	check := func(key string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", cfg.At(key), err))
		}
	}
	ro := registryOptions(cfg)
	for _, f := range []struct {
		key string
		o   interface{ ReadFiles() (string, error) }
	}{
		{"source.tokenFile", manager.Options{TokenFile: cfg.Source.Manager.TokenFile}},
		{"source.caFile", manager.Options{CAFile: cfg.Source.Manager.CAFile}},
		{"fleet.tokenFile", manager.Options{TokenFile: cfg.Fleet.TokenFile}},
		{"fleet.caFile", manager.Options{CAFile: cfg.Fleet.CAFile}},
		{"report.authFile", registry.Options{AuthFile: cfg.Report.AuthFile}},
		{"registry.authFile", registry.Options{AuthFile: cfg.Registry.AuthFile}},
		{"registry.caFile", registry.Options{CAFile: ro.CAFile, LaterCAFile: ro.LaterCAFile}},
		{"registry.certFile", registry.Options{CertFile: cfg.Registry.CertFile, KeyFile: cfg.Registry.KeyFile}},
	} {
		_, err := f.o.ReadFiles()
		check(f.key, err)
	}
	for _, f := range [][2]string{{"observability.otlp.caFile", cfg.OTLP.CAFile}, {"observability.traces.caFile", cfg.Traces.CAFile}} {
		if f[1] != "" {
			_, err := authorities(f[1])
			check(f[0], err)
		}
	}
	checkPanel(cfg.Panel, check)
	checkOperators(cfg.Approvals, check)
	if _, err := keyPlace(cfg).Load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for i, e := range []config.Endpoint{cfg.Source.Manager, cfg.Fleet.Endpoint} {
		if i == 1 && e == cfg.Source.Manager {
			continue
		}
		key := []string{"source", "fleet"}[i] + ".certFile"
		if e.WorkloadAPI != "" {
			key = strings.Replace(key, "certFile", "workloadAPI", 1)
		}
		check(key, checkIdentity(c.Context, cfg, e))
	}
	if configErr == nil && trustErr == nil {
		errs = append(errs, checkSource(cfg, policy))
	}
	errs = append(errs, registry.CheckCerts(cfg.Registry.CertsDir))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	from := "state " + cfg.State
	if url := cfg.Source.Manager.URL; url != "" {
		if from = "manager " + url; cfg.State != "" {
			from += ", signed in " + cfg.State
		}
	}
	fmt.Fprintf(c.Out, "%s: ok: device %s, %s, %d trust rules\n", c.String("config"), cfg.Device, from, len(policy.Rules))
	return nil
}

// checkIdentity reports what keeps this device from a certificate.
func checkIdentity(ctx context.Context, cfg *config.Config, e config.Endpoint) error {
	p := parts{svids: map[string]*workloadapi.Source{}}
	own, err := p.identity(cfg, e, time.Now, slog.New(slog.DiscardHandler))
	if err != nil || own == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, workloadWait)
	defer cancel()
	for _, s := range p.svids {
		return s.Fetch(ctx)
	}
	_, err = own.Credentials()
	return err
}

// checkSource reports a manager from which the trust policy accepts nothing.
func checkSource(cfg *config.Config, policy *trust.Policy) error {
	if cfg.Source.Manager.URL == "" || cfg.State != "" {
		return nil
	}
	name, err := margo.ManagerName(cfg.Source.Manager.URL)
	if err != nil {
		return err
	}
	if rule, found := policy.Match(trust.KindState, name); !found || !rule.AllowUnsigned {
		return fault.WithHint(fmt.Errorf("%s: source.margo: the trust policy accepts nothing of this manager: %w", cfg.File, fault.ErrRejected),
			"add a rule to "+cfg.Trust+" with scope: "+name+" and allowUnsigned: true; or name the repository of signed states: state in agent.yaml")
	}
	return nil
}
