package identity

import (
	"fmt"
	"net/url"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxConfigBytes bounds a signing config. That of sigstore's public instance has 2 KiB.
const MaxConfigBytes = 256 << 10

// Services are the servers of a sigstore instance.
type Services struct {
	Fulcio string   // URL of the certificate authority; needed
	Logs   []Log    // none: the signature is in no log, and most verifiers refuse it
	Clocks []string // endpoints of timestamp authorities, with their path; none: the log must say when
}

// Log is a transparency log.
type Log struct {
	URL     string
	Version uint32 // of Rekor's interface: 1 or 2
}

// ParseServices reads the signing config that cosign and sigstore's root give out (signing_config.v0.2.json), and chooses
// the services of which it says that they are to be used at now.
func ParseServices(data []byte, now time.Time) (Services, error) {
	if len(data) > MaxConfigBytes {
		return Services{}, fmt.Errorf("signing config: %w: more than %d bytes", fault.ErrTooLarge, MaxConfigBytes)
	}
	config, err := root.NewSigningConfigFromJSON(data)
	if err != nil {
		return Services{}, fmt.Errorf("signing config: %w: %w", fault.ErrInvalid, err)
	}
	var s Services
	fulcio, err := root.SelectService(config.FulcioCertificateAuthorityURLs(), sign.FulcioAPIVersions, now)
	if err != nil {
		return Services{}, fmt.Errorf("signing config: %w: certificate authority: %w", fault.ErrInvalid, err)
	}
	s.Fulcio = fulcio.URL
	if all := config.RekorLogURLs(); len(all) > 0 {
		logs, err := root.SelectServices(all, config.RekorLogURLsConfig(), sign.RekorAPIVersions, now)
		if err != nil {
			return Services{}, fmt.Errorf("signing config: %w: transparency log: %w", fault.ErrInvalid, err)
		}
		for _, l := range logs {
			s.Logs = append(s.Logs, Log{l.URL, l.MajorAPIVersion})
		}
	}
	if all := config.TimestampAuthorityURLs(); len(all) > 0 {
		clocks, err := root.SelectServices(all, config.TimestampAuthorityURLsConfig(), sign.TimestampAuthorityAPIVersions, now)
		if err != nil {
			return Services{}, fmt.Errorf("signing config: %w: timestamp authority: %w", fault.ErrInvalid, err)
		}
		for _, c := range clocks {
			s.Clocks = append(s.Clocks, c.URL)
		}
	}
	return s, s.Check()
}

// Check reports what is missing or wrong before any request.
func (s Services) Check() error {
	all := append([]string{s.Fulcio}, s.Clocks...)
	for _, l := range s.Logs {
		if l.Version != 1 && l.Version != 2 {
			return fmt.Errorf("transparency log %s: %w: version %d", l.URL, fault.ErrUnsupported, l.Version)
		}
		all = append(all, l.URL)
	}
	for _, raw := range all {
		if u, err := url.Parse(raw); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return fmt.Errorf("service %q: %w: no URL", raw, fault.ErrInvalid)
		}
	}
	for _, l := range s.Logs {
		if l.Version == 2 && len(s.Clocks) == 0 {
			err := fmt.Errorf("transparency log %s: %w: it does not say when, and there is no timestamp authority", l.URL, fault.ErrInvalid)
			return fault.WithHint(err, "name a timestamp authority too, or the signature could not be verified")
		}
	}
	if len(s.Logs) == 0 && len(s.Clocks) == 0 {
		return fmt.Errorf("%w: neither a transparency log nor a timestamp authority: the signature could not be verified ten minutes later", fault.ErrInvalid)
	}
	return nil
}
