package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/budget"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/registry/internal/auths"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Defaults of Options.
const (
	defaultConcurrency  = 3                // blobs in flight; what registries and oras-go are used to
	defaultRetryBudget  = time.Minute      // all waits of one request together
	defaultStallTimeout = 60 * time.Second // a body that brings next to nothing for so long is given up and resumed
	defaultTagWait      = 120 * time.Millisecond
	defaultUserAgent    = "longshore"
)

// Options say how registries are reached. The zero value is strict: HTTPS with the system's roots, no credentials, no
// mirrors, and, without Getenv, no environment.
type Options struct {
	// PlainHTTP speaks HTTP to every registry. Without it only PlainHTTPHosts, hosts whose hosts.toml says http://, and
	// loopback addresses without TLS settings of their own are spoken to in the clear.
	PlainHTTP      bool
	PlainHTTPHosts []string // host[:port], as in references
	// LoopbackTLS speaks HTTPS to loopback addresses, too, where none of these says otherwise.
	LoopbackTLS bool

	SkipVerify        bool   // accept any server certificate
	CAFile            string // PEM; added to the system's roots
	CertFile, KeyFile string // client certificate, PEM; both or none

	// Username with Password, or Token (a registry bearer token), go to Host only; with an empty Host, to the registries that
	// [Client.Open] was called for. Never to a mirror, nor to a registry that only a file, a document or an image
	// reference names. They come before any file. The environment variables LONGSHORE_USERNAME, LONGSHORE_PASSWORD,
	// LONGSHORE_TOKEN and LONGSHORE_REGISTRY_HOST fill in what is empty here.
	Host               string
	Username, Password string
	Token              string

	// AuthFile is a Docker config.json or podman auth.json that is read before (and written by Login instead of) the
	// files that Docker and podman use: REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json, ~/.docker/config.json,
	// $XDG_RUNTIME_DIR/containers/auth.json, ~/.config/containers/auth.json.
	AuthFile string

	// CertsDir holds containerd's <host>/hosts.toml files: mirrors, CAs, client certificates; or the certificates alone, as
	// Docker names them: <host>/*.crt, NAME.cert with NAME.key. Empty: none.
	CertsDir string

	// Now is what certificates' dates are held against; nil: the system's clock.
	Now func() time.Time
	// Date gets the time that servers send, unauthenticated. nil: not called.
	Date func(time.Time)
	// Lied is told that a mirror sent other bytes than were asked for: once for each mirror, and again when it has sent the right
	// bytes since, at most once an hour by Now (without Now: once). err names the mirror. It is called from many goroutines and must not wait; nil: not
	// called.
	Lied func(repository string, err error)

	UserAgent    string
	Logger       *slog.Logger  // nil: silent
	Concurrency  int           // blobs moved at a time; 0: 3
	Requests     int           // requests to one server that wait for their answers at a time; 0: any number
	RetryBudget  time.Duration // all waits for retries of one request together; 0: one minute; negative: no retry
	TagWait      time.Duration // how long the writer of a tag that others set too waits, at least, before it looks whether the tag has held; 0: 120 ms, longer than others take from looking to setting
	StallTimeout time.Duration // how long a body may bring next to nothing before it is resumed, and two thirds of the wait for an answer; also how long a credential helper may take; 0: one minute

	// Uploads is a directory that remembers uploads, so that a later run continues those that this one is killed in; "": none is
	// remembered.
	Uploads cache.Folder

	// Budget bounds what all requests together take of the link; nil: nothing does. Its context has to be that of the calls.
	Budget *budget.Budget

	// Getenv reads the environment (os.Getenv in programs). Nil: an empty environment: no HOME, no proxies.
	Getenv func(string) string
}

func (o Options) withDefaults() Options {
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Username == "" && o.Password == "" && o.Token == "" {
		o.Username, o.Password = o.Getenv("LONGSHORE_USERNAME"), o.Getenv("LONGSHORE_PASSWORD")
		if o.Username == "" {
			o.Token = o.Getenv("LONGSHORE_TOKEN")
		}
	}
	if o.Host == "" {
		o.Host = o.Getenv("LONGSHORE_REGISTRY_HOST")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TagWait <= 0 {
		o.TagWait = defaultTagWait
	}
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.RetryBudget == 0 {
		o.RetryBudget = defaultRetryBudget
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = defaultStallTimeout
	}
	if o.UserAgent == "" {
		o.UserAgent = defaultUserAgent
	}
	return o
}

func (o Options) check() error {
	switch {
	case o.Host != "" && checkHost(o.Host) != nil:
		return fault.WithHint(fmt.Errorf("registry options: the host that credentials are for is %q: %w", o.Host, fault.ErrInvalid),
			"a registry is named by its host and port, as in references: registry.example.com:5000")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return fmt.Errorf("registry options: a client certificate needs both a certificate and a key file: %w", fault.ErrInvalid)
	case o.Token != "" && (o.Username != "" || o.Password != ""):
		return fmt.Errorf("registry options: a token and a user name exclude each other: %w", fault.ErrInvalid)
	case o.Username == "" && o.Password != "":
		return fmt.Errorf("registry options: a password needs a user name: %w", fault.ErrInvalid)
	}
	return nil
}

// ReadFiles tells which of the options names a file that cannot be used, and why; "" for none. Otherwise it shows at the first
// request to a registry, once for each thing that is asked for; of AuthFile, which Login makes, it does not show at all.
func (o Options) ReadFiles() (option string, err error) {
	if o.CAFile != "" {
		if _, err := (wire.TLS{CAFiles: []string{o.CAFile}}).Config(); err != nil {
			return "CAFile", err
		}
	}
	if o.CertFile != "" && o.KeyFile != "" {
		if _, err := (wire.TLS{Pairs: [][2]string{{o.CertFile, o.KeyFile}}}).Config(); err != nil {
			return "CertFile", err
		}
	}
	if o.AuthFile != "" {
		if err := auths.Check(o.AuthFile); err != nil {
			return "AuthFile", err
		}
	}
	return "", nil
}

// CheckCerts reads every folder of a CertsDir and the certificates that it names, and returns all that cannot be used.
func CheckCerts(dir string) error {
	folders, err := certsd.Folders(dir)
	if err != nil {
		return unusable(err)
	}
	var errs []error
	for _, folder := range folders {
		config, err := certsd.LoadFolder(folder)
		if err != nil {
			errs = append(errs, unusable(err))
			continue
		}
		if config.Server != nil {
			config.Mirrors = append(config.Mirrors, *config.Server)
		}
		for _, h := range config.Mirrors {
			if _, err := (wire.TLS{CAFiles: h.CAFiles, Pairs: h.Pairs}).Config(); err != nil {
				errs = append(errs, unusable(fmt.Errorf("%s: %w", folder, err)))
			}
		}
	}
	return errors.Join(errs...)
}

// plain reports whether host is spoken to in the clear when hosts.toml says nothing about it.
func (o Options) plain(host string) bool {
	if o.PlainHTTP || slices.Contains(o.PlainHTTPHosts, host) {
		return true
	}
	if o.LoopbackTLS || o.CAFile != "" || o.CertFile != "" || o.SkipVerify {
		return false
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || (ip != nil && ip.IsLoopback())
}
