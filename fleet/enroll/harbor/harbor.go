// Package harbor gives each device a robot account of its own in a Harbor project, that may pull and nothing else. It speaks Harbor's
// API v2.0 (since Harbor 2.2). The entry point is [New]; package harbortest has a Harbor for tests.
package harbor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/enroll"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
)

const (
	callTimeout = 15 * time.Second
	maxAnswer   = 1 << 20 // bytes
	maxDetail   = 300
	handleKind  = "harbor:"
	robotPrefix = "longshore-"
	keyDigits   = 32 // of a fingerprint, in the name of an account: Harbor allows lower-case letters, digits and dashes
	page        = 100
	maxPages    = 1000
)

// Options make a [Project].
type Options struct {
	URL      string // of Harbor
	Host     string // of the registry, as references name it
	Name     string // of the project
	Username string // of an administrator of the project; Harbor lets no robot account set the secrets of others
	Password string
	CA       []byte                                // PEM of authorities beside the system's; nil: none
	Proxy    func(*http.Request) (*url.URL, error) // as http.ProxyFromEnvironment; nil: none
}

// Project is a Harbor project. It implements [enroll.Credentials].
type Project struct {
	o    Options
	http *http.Client
}

var _ enroll.Credentials = (*Project)(nil)

// New checks the options. It opens no connection.
func New(o Options) (*Project, error) {
	if u, err := url.Parse(o.URL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("registry %q: %w", o.URL, fault.ErrInvalid)
	}
	o.URL = strings.TrimSuffix(o.URL, "/")
	t := &http.Transport{Proxy: o.Proxy, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: callTimeout, IdleConnTimeout: time.Minute}
	if o.CA != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(o.CA) {
			return nil, fmt.Errorf("registry %s: the CA file has no certificate: %w", o.URL, fault.ErrInvalid)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &Project{o, &http.Client{Transport: t, Timeout: callTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Handle implements [enroll.Credentials]: the name of the account, which only depends on the key.
func (p *Project) Handle(key digest.Digest) string {
	return handleKind + p.o.Name + "/" + robotPrefix + key.Encoded()[:keyDigits]
}

// robot is a robot account as Harbor's API has it.
type robot struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"` // with Harbor's prefix and the project: robot$plant+longshore-1f…
	Secret string `json:"secret,omitempty"`
}

type permission struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Access    []access `json:"access"`
}

type access struct {
	Resource string `json:"resource"`
	Action   string `json:"action"`
}

type newRobot struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int          `json:"duration"` // days; -1: until it is deleted
	Permissions []permission `json:"permissions"`
}

// Give implements [enroll.Credentials].
func (p *Project) Give(ctx context.Context, device, handle string) (protocol.Login, error) {
	name, err := p.account(handle)
	if err != nil {
		return protocol.Login{}, err
	}
	var r robot
	code, err := p.call(ctx, http.MethodPost, "/robots", newRobot{
		Name: name, Description: "Longshore: pulls for the device " + device, Level: "project", Duration: -1,
		Permissions: []permission{{Kind: "project", Namespace: p.o.Name, Access: []access{{Resource: "repository", Action: "pull"}}}},
	}, &r, http.StatusConflict)
	if err == nil && code == http.StatusConflict { // of an earlier grant: its secret cannot be read, only replaced
		r, err = p.renew(ctx, name)
	}
	switch {
	case err != nil:
		return protocol.Login{}, err
	case r.Name == "" || r.Secret == "":
		return protocol.Login{}, fmt.Errorf("registry %s: its answer has no name or no secret of a robot account: %w", p.o.URL, fault.ErrInvalid)
	}
	return protocol.Login{Host: p.o.Host, Username: r.Name, Password: r.Secret}, nil
}

// renew sets a new secret of an existing account.
func (p *Project) renew(ctx context.Context, name string) (robot, error) {
	r, err := p.find(ctx, name)
	if err != nil {
		return robot{}, err
	}
	if r == nil {
		return robot{}, fmt.Errorf("registry %s: the robot account %s is there and not in its list: %w", p.o.URL, name, fault.ErrTemporary)
	}
	var secret struct {
		Secret string `json:"secret"`
	}
	_, err = p.call(ctx, http.MethodPatch, "/robots/"+strconv.FormatInt(r.ID, 10), map[string]string{"secret": ""}, &secret)
	r.Secret = secret.Secret
	return *r, err
}

// Withdraw implements [enroll.Credentials].
func (p *Project) Withdraw(ctx context.Context, handle string) error {
	name, err := p.account(handle)
	if err != nil {
		return err
	}
	r, err := p.find(ctx, name)
	if err != nil || r == nil {
		return err
	}
	_, err = p.call(ctx, http.MethodDelete, "/robots/"+strconv.FormatInt(r.ID, 10), nil, nil, http.StatusNotFound)
	return err
}

// account is the name in a handle, which must be of this project.
func (p *Project) account(handle string) (string, error) {
	name, ok := strings.CutPrefix(handle, handleKind+p.o.Name+"/")
	if !ok {
		return "", fault.WithHint(fmt.Errorf("credential %s: it is not of the project %s of %s: %w", handle, p.o.Name, p.o.URL, fault.ErrConfig),
			"delete that account by hand, or restore the settings that it was made with")
	}
	return name, nil
}

// find finds an account of the project by its name; nil: none.
func (p *Project) find(ctx context.Context, name string) (*robot, error) {
	var project struct {
		ID int64 `json:"project_id"`
	}
	if _, err := p.call(ctx, http.MethodGet, "/projects/"+url.PathEscape(p.o.Name), nil, &project); err != nil {
		return nil, err
	}
	q := url.Values{"q": {fmt.Sprintf("Level=project,ProjectID=%d", project.ID)}, "page_size": {strconv.Itoa(page)}}
	for n := 1; n <= maxPages; n++ {
		q.Set("page", strconv.Itoa(n))
		var list []robot
		if _, err := p.call(ctx, http.MethodGet, "/robots?"+q.Encode(), nil, &list); err != nil {
			return nil, err
		}
		for _, r := range list {
			if strings.HasSuffix(r.Name, p.o.Name+"+"+name) {
				return &r, nil
			}
		}
		if len(list) < page {
			return nil, nil
		}
	}
	return nil, fmt.Errorf("registry %s: more than %d robot accounts in project %s: %w", p.o.URL, maxPages*page, p.o.Name, fault.ErrTooLarge)
}

// call sends a request; other codes than those of success and pass are errors.
func (p *Project) call(ctx context.Context, method, path string, body, into any, pass ...int) (int, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, p.o.URL+"/api/v2.0"+path, bytes.NewReader(data))
	if err != nil {
		return 0, fmt.Errorf("registry %s: %w: %w", p.o.URL, fault.ErrInvalid, err)
	}
	req.SetBasicAuth(p.o.Username, p.o.Password)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Is-Resource-Name", "true") // a project called "12" is not project 12
	res, err := p.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("registry %s: %s %s: %w: %w", p.o.URL, method, path, fault.ErrTemporary, err)
	}
	defer res.Body.Close()
	answer, err := bounded.Read(res.Body, maxAnswer)
	if err != nil {
		return 0, fmt.Errorf("registry %s: %s %s: %w: %w", p.o.URL, method, path, fault.ErrTemporary, err)
	}
	switch code := res.StatusCode; {
	case slices.Contains(pass, code):
		return code, nil
	case code < 200 || code > 299:
		return 0, p.failed(method, path, res, answer)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			return 0, fmt.Errorf("registry %s: %s %s: its answer is no JSON of the expected form: %w", p.o.URL, method, path, fault.ErrInvalid)
		}
	}
	return res.StatusCode, nil
}

func (p *Project) failed(method, path string, res *http.Response, answer []byte) error {
	var errors struct {
		Errors []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	detail := ""
	if json.Unmarshal(answer, &errors) == nil && len(errors.Errors) > 0 {
		detail = ": " + errors.Errors[0].Message[:min(len(errors.Errors[0].Message), maxDetail)]
	}
	path, _, _ = strings.Cut(path, "?")
	err := fmt.Errorf("registry %s: %s %s: %s%s", p.o.URL, method, path, res.Status, strings.ToValidUTF8(detail, "?"))
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrConfig), "use a user that administers project "+p.o.Name+": Harbor lets no robot account set the secrets of others")
	case code == http.StatusNotFound:
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrConfig), "is "+p.o.Name+" a project there?")
	case code == http.StatusTooManyRequests || code >= 500:
		return fmt.Errorf("%w: %w", err, fault.ErrTemporary)
	}
	return fmt.Errorf("%w: %w", err, fault.ErrInvalid)
}
