// Package endpoint reads the reports of devices from a fleet endpoint: the JSON views of longshore-fleet, for
// waves and for display. The entry point is [New].
//
// Responses are bounded, and entries of other devices than the requested ones are dropped. An unreachable or failing server
// is fault.ErrTemporary; rejected credentials are fault.ErrUnauthenticated or fault.ErrDenied; a server that is not a
// fleet endpoint is fault.ErrInvalid.
package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Limits.
const (
	fewDevices   = 16       // devices that are requested one by one
	manyAtOnce   = 4        // requests for single devices at a time
	pageSize     = 1000     // limit of longshore-fleet
	equippedPage = 200      // its limit with capabilities, each up to 256 KiB
	maxPages     = 10_000   // of one listing
	maxAnswer    = 64 << 20 // bytes of a page: 1000 devices that have long errors, or 200 with capabilities
	maxDetail    = 300      // bytes of a response in an error
	callTimeout  = 30 * time.Second
	maxRetryWait = time.Hour
)

// Options make a [Client].
type Options struct {
	URL       string // of the endpoint: https://host[:port][/prefix]
	Password  string // of viewers of longshore-fleet; "": none
	Token     string // bearer token, for a proxy in front of it, instead of Password; "": none
	CA        []byte // PEM of certificates to trust beside the system's; nil: none
	UserAgent string
	Timeout   time.Duration // of one request; 0: 30 s
	// Proxy chooses a proxy for a request, as http.ProxyFromEnvironment does; nil: none.
	Proxy func(*http.Request) (*url.URL, error)
}

// Client reads from one endpoint. It implements [rollout.Endpoint], and is safe for concurrent use. Close it when done.
type Client struct {
	o    Options
	base *url.URL
	http *http.Client
}

var _ rollout.Endpoint = (*Client)(nil)

// New checks the options. It opens no connection.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fault.WithHint(fmt.Errorf("fleet endpoint %q: %w", o.URL, fault.ErrInvalid), "write it as https://host[:port]; a password has a flag of its own")
	}
	if o.Password != "" && o.Token != "" {
		return nil, fmt.Errorf("fleet endpoint %s: a password and a token: %w", base, fault.ErrInvalid)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	if o.Timeout <= 0 {
		o.Timeout = callTimeout
	}
	t := &http.Transport{
		Proxy: o.Proxy, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: manyAtOnce, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 15 * time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CA != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(o.CA) {
			return nil, fmt.Errorf("fleet endpoint %s: the CA file holds no certificate: %w", base, fault.ErrInvalid)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &Client{o: o, base: base, http: &http.Client{
		Transport: t, Timeout: o.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a password is sent nowhere else
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// device is a device in an answer of the views. Unknown members are ignored.
type device struct {
	ID           string                    `json:"id"`
	LastHeard    time.Time                 `json:"lastHeard"`
	OfflineSince time.Time                 `json:"offlineSince"` // missing: it is online
	Ago          int64                     `json:"lastHeardSecondsAgo"`
	Every        int64                     `json:"reportIntervalSeconds"` // 0: unknown
	AgentVersion string                    `json:"agentVersion"`
	Accepted     uint64                    `json:"acceptedGeneration"`
	Digest       string                    `json:"digest"`
	Running      uint64                    `json:"runningGeneration"`
	Committed    uint64                    `json:"committedGeneration"`
	Refused      *artifacts.CurrentRefusal `json:"refused"`
	rollout.Waits
	Progress     *artifacts.CurrentProgress `json:"progress"`
	Capabilities json.RawMessage            `json:"capabilities"`
	Details      []deployment               `json:"deploymentDetails"`
	Next         *cursor                    `json:"next"` // if not all details fit
}

// cursor is the deployment after which the next page begins.
type cursor struct {
	Device     string `json:"afterDevice"`
	Deployment string `json:"afterDeployment"`
}

type deployment struct {
	Device     string             `json:"deviceId"`
	ID         string             `json:"deploymentId"`
	Generation uint64             `json:"adoptedManifestVersion"`
	State      margo.State        `json:"state"`
	Error      *margo.StatusError `json:"error"`
}

func (d device) sighting() *rollout.DeviceReport {
	s := &rollout.DeviceReport{
		Heard: d.LastHeard, Ago: time.Duration(d.Ago) * time.Second, Every: time.Duration(d.Every) * time.Second,
		OfflineSince: d.OfflineSince, Agent: d.AgentVersion, Accepted: d.Accepted, Running: d.Running, Committed: d.Committed, Digest: digest.Digest(d.Digest),
	}
	s.Waits, s.Progress, s.Refused = d.Waits, d.Progress, d.Refused
	for _, x := range d.Details {
		s.Deployments = append(s.Deployments, x.seen())
	}
	return s
}

func (d deployment) seen() rollout.DeploymentReport {
	out := rollout.DeploymentReport{ID: d.ID, Generation: d.Generation, State: d.State}
	if d.Error != nil {
		out.Error = d.Error.Message
		if d.Error.Code != "" {
			out.Error = d.Error.Code + ": " + out.Error
		}
	}
	return out
}

// Look implements [rollout.Endpoint]: few devices are requested one by one; for more all are listed, devices first and deployments then: the
// deployments of a device are then never older than its own entry.
func (c *Client) Look(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	out := make(map[artifacts.DeviceID]*rollout.DeviceReport, len(devices))
	if len(devices) <= fewDevices {
		found, err := c.each(ctx, devices)
		for id, d := range found {
			out[id] = d.sighting()
		}
		return out, err
	}
	err := c.list(ctx, url.Values{"limit": {strconv.Itoa(pageSize)}}, devices, func(id artifacts.DeviceID, d device) { out[id] = d.sighting() })
	if err != nil {
		return nil, err
	}
	return out, c.pages(ctx, url.Values{"limit": {strconv.Itoa(pageSize)}}, func(d deployment) {
		if s := out[artifacts.DeviceID(d.Device)]; s != nil {
			s.Deployments = append(s.Deployments, d.seen())
		}
	})
}

// each requests devices one by one; a device that has never reported is not in the result.
func (c *Client) each(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID]*device, error) {
	out := map[artifacts.DeviceID]*device{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(manyAtOnce)
	for _, id := range devices {
		g.Go(func() error {
			d, err := c.device(ctx, id)
			if errors.Is(err, fault.ErrNotFound) {
				return nil
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				out[id] = d
			}
			return err
		})
	}
	return out, g.Wait()
}

// list reads all pages of devices, and calls visit for the requested ones.
func (c *Client) list(ctx context.Context, q url.Values, devices []artifacts.DeviceID, visit func(artifacts.DeviceID, device)) error {
	wanted := make(map[artifacts.DeviceID]bool, len(devices))
	for _, id := range devices {
		wanted[id] = true
	}
	for page := 0; ; page++ {
		var list struct {
			Devices []device `json:"devices"`
			Next    string   `json:"next"`
		}
		if err := c.get(ctx, "/fleet/v1/devices", q, &list); err != nil {
			return err
		}
		for _, d := range list.Devices {
			if id := artifacts.DeviceID(d.ID); wanted[id] {
				visit(id, d)
			}
		}
		if list.Next == "" {
			return nil
		}
		if list.Next == q.Get("after") || page == maxPages {
			return fmt.Errorf("fleet endpoint %s: its list of devices does not end: %w", c.base, fault.ErrInvalid)
		}
		q.Set("after", list.Next)
	}
}

// pages reads all pages of deployments.
func (c *Client) pages(ctx context.Context, q url.Values, visit func(deployment)) error {
	for page := 0; ; page++ {
		var list struct {
			Deployments []deployment `json:"deployments"`
			Next        *cursor      `json:"next"`
		}
		if err := c.get(ctx, "/fleet/v1/deployments", q, &list); err != nil {
			return err
		}
		for _, d := range list.Deployments {
			visit(d)
		}
		n := list.Next
		if n == nil {
			return nil
		}
		if n.Device == q.Get("afterDevice") && n.Deployment == q.Get("afterDeployment") || page == maxPages {
			return fmt.Errorf("fleet endpoint %s: its list of deployments does not end: %w", c.base, fault.ErrInvalid)
		}
		q.Set("afterDevice", n.Device)
		q.Set("afterDeployment", n.Deployment)
	}
}

// Capabilities implements [rollout.Endpoint]: few devices are requested one by one, for more all are listed. Devices that an
// endpoint does not list, or whose entry is too large, are requested one by one as well.
func (c *Client) Capabilities(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error) {
	out, ask := make(map[artifacts.DeviceID][]byte, len(devices)), devices
	if len(devices) > fewDevices {
		ask = nil
		err := c.list(ctx, url.Values{"limit": {strconv.Itoa(equippedPage)}, "capabilities": {"true"}}, devices, func(id artifacts.DeviceID, d device) {
			if d.Capabilities == nil { // not even null
				ask = append(ask, id)
			} else if d.equipped() {
				out[id] = d.Capabilities
			}
		})
		if errors.Is(err, fault.ErrTooLarge) {
			ask, err = devices, nil
		}
		if err != nil {
			return nil, err
		}
	}
	found, err := c.each(ctx, ask)
	for id, d := range found {
		if d.equipped() {
			out[id] = d.Capabilities
		}
	}
	return out, err
}

// equipped reports whether a device has reported its capabilities.
func (d device) equipped() bool { return len(d.Capabilities) > 0 && string(d.Capabilities) != "null" }

func (c *Client) device(ctx context.Context, id artifacts.DeviceID) (*device, error) {
	parts := strings.Split(string(id), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	var d device
	if err := c.get(ctx, "/fleet/v1/devices/"+strings.Join(parts, "/"), nil, &d); err != nil {
		return nil, err
	}
	if d.ID != string(id) {
		return nil, fmt.Errorf("fleet endpoint %s: asked about %s, it answers about %q: %w", c.base, id, d.ID, fault.ErrInvalid)
	}
	if n := d.Next; n != nil {
		q := url.Values{"limit": {strconv.Itoa(pageSize)}, "device": {d.ID}, "afterDevice": {n.Device}, "afterDeployment": {n.Deployment}}
		err := c.pages(ctx, q, func(x deployment) {
			if x.Device == d.ID {
				d.Details = append(d.Details, x)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return &d, nil
}

// get sends one request.
func (c *Client) get(ctx context.Context, path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, nil, into)
}

// Hand hands in the report of a device that the device has signed, a Sigstore bundle. stored is false if the endpoint has had this
// one or a newer one before. A report that the endpoint rejects is fault.ErrDenied or fault.ErrInvalid; if it does not know the
// device's gateway, fault.ErrNotFound; if it takes no reports that are handed in, fault.ErrUnsupported.
func (c *Client) Hand(ctx context.Context, bundle []byte) (stored bool, note string, err error) {
	var answer struct {
		Stored *bool  `json:"stored"`
		Note   string `json:"note"`
	}
	if err := c.do(ctx, http.MethodPost, "/fleet/v1/reports", bundle, &answer); err != nil {
		return false, "", err
	}
	if answer.Stored == nil {
		return false, "", fault.WithHint(fmt.Errorf("fleet endpoint %s: it does not say what became of a report: %w", c.base, fault.ErrInvalid), "check the address")
	}
	return *answer.Stored, answer.Note, nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("fleet endpoint %s: %w: %w", c.base, fault.ErrInvalid, err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.o.UserAgent != "" {
		req.Header.Set("User-Agent", c.o.UserAgent)
	}
	switch {
	case c.o.Password != "":
		req.SetBasicAuth("longshore", c.o.Password)
	case c.o.Token != "":
		req.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fault.WithHint(fmt.Errorf("fleet endpoint %s: %w: %w", c.base, bare(err), fault.ErrTemporary),
			"is it the right address, --endpoint or endpoint in fleet.yaml, and does longshore-fleet run there?")
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("fleet endpoint %s: %w: %w", c.base, fault.ErrTemporary, err)
	case res.StatusCode != http.StatusOK:
		return c.judge(res, data, method, path)
	case len(data) > maxAnswer:
		return fmt.Errorf("fleet endpoint %s: %s: more than %d bytes: %w", c.base, path, maxAnswer, fault.ErrTooLarge)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fault.WithHint(fmt.Errorf("fleet endpoint %s: %s is no answer of one: %w: %w", c.base, path, fault.ErrInvalid, err), "check the address")
	}
	return nil
}

// judge turns an unexpected response into an error.
func (c *Client) judge(res *http.Response, body []byte, method, path string) error {
	detail := strings.Join(strings.Fields(strings.ToValidUTF8(string(body[:min(len(body), maxDetail)]), "?")), " ")
	known, kind := false, ""
	if p, err := margo.ParseProblem("problem", body); err == nil {
		known, kind, detail = true, p.Type, p.Title
		if p.Detail != "" {
			detail += ": " + p.Detail
		}
	}
	err := fmt.Errorf("fleet endpoint %s: %s: %s", c.base, res.Status, detail)
	switch status := res.StatusCode; {
	case status == http.StatusUnauthorized:
		return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnauthenticated), "give the viewers' password with --endpoint-password-file")
	case status == http.StatusForbidden:
		return fmt.Errorf("%w: %w", err, fault.ErrDenied)
	case status == http.StatusNotFound && known && strings.HasPrefix(path, "/fleet/v1/devices/"), kind == margo.ProblemBase+"gateway-not-found":
		return fmt.Errorf("%w: %w", err, fault.ErrNotFound)
	case status == http.StatusTooManyRequests || status >= 500:
		err = fmt.Errorf("%w: %w", err, fault.ErrTemporary)
		if n, wrong := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); wrong == nil {
			err = fault.WithRetryAfter(err, min(time.Duration(n)*time.Second, maxRetryWait))
		}
		return err
	case method == http.MethodPost && (!known || status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return fault.WithHint(fmt.Errorf("%w: it takes no reports that others hand in: %w", err, fault.ErrUnsupported), "start it with longshore-fleet serve --report-keys, and check the address")
	}
	return fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrInvalid), "check the address")
}

// bare drops the method and URL that net/http adds to an error, because our error has them, and the system calls of a connection
// that was not made.
func bare(err error) error {
	var (
		link   *url.Error
		name   *net.DNSError
		dial   *net.OpError
		number syscall.Errno
	)
	if errors.As(err, &link) {
		err = link.Err
	}
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("look up %s: %s%.0w", name.Name, name.Err, err)
	case errors.As(err, &dial) && dial.Op == "dial" && dial.Addr != nil && errors.As(dial.Err, &number):
		return fmt.Errorf("connect to %s: %w", dial.Addr, number)
	}
	return err
}
