package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/endpoint"
	"github.com/longshore-dev/longshore/fleet/reported"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/current"
)

const endpointCategory = "Fleet endpoint"

// maxEndpointFile limits a file with a password, a token or certificates.
const maxEndpointFile = 1 << 20

// endpointFlags configure the access to the reports of devices.
var endpointFlags = []cmdline.Flag{
	{Name: "endpoint", Category: endpointCategory, Usage: "`URL` of the fleet endpoint that devices report to; default: endpoint in fleet.yaml"},
	{Name: "endpoint-password-file", Category: endpointCategory, Usage: "`FILE` with the viewers' password"},
	{Name: "endpoint-token-file", Category: endpointCategory, Usage: "`FILE` with a bearer token instead of the password, for a proxy"},
	{Name: "endpoint-ca-file", Category: endpointCategory, Usage: "`FILE` with CA certificates to trust in addition to the system's"},
}

// asked reads the reports of devices. Close it.
type asked struct {
	rollout.Endpoint
	registry *reported.Source // nil: devices do not report through the registry
	seen     *current.Watch   // nil: as registry
	close    func()
}

func (a *asked) Close() { a.close() }

// unverified is why a device's report in the registry does not count; "": it counts, or there is none.
func (a *asked) unverified(id artifacts.DeviceID) string {
	if a.registry == nil {
		return ""
	}
	return a.registry.Unverified(id)
}

// endpoint opens the fleet endpoint of the flags or the files, and the reports in the registry if the files enable them; nil if
// there is neither. Close it.
func (c *call) endpoint(f *fleet.Fleet) (*asked, error) {
	e, err := c.http(f)
	if err != nil {
		return nil, err
	}
	out := &asked{close: func() {}}
	if e != nil {
		out.Endpoint, out.close = e, e.Close
	}
	if f.Reports != nil {
		out.seen = c.seenReports(f)
		out.registry = &reported.Source{Fleet: f, Read: c.readReports(f, out.seen), Now: c.now}
		if e == nil {
			out.Endpoint = out.registry
		} else {
			out.Endpoint = reported.Both{Endpoint: e, Registry: out.registry}
		}
	}
	if out.Endpoint == nil {
		return nil, nil
	}
	return out, nil
}

// seenReports continues with what earlier runs have read of a fleet's reports in the registry. It is stored when the call ends.
func (c *call) seenReports(f *fleet.Fleet) *current.Watch {
	name := digest.FromString(f.Registry+"\n"+f.Name).Encoded() + ".json"
	if w := c.seen[name]; w != nil { // a plan has read them before
		return w
	}
	if c.seen == nil {
		c.seen = map[string]*current.Watch{}
	}
	folder := c.cacheDir("reports")
	data, _ := folder.Read(name, maxSeen) // nothing, without a file
	w := current.NewWatch(data)
	c.seen[name] = w
	c.atEnd(func() {
		if now, err := w.Encode(); err == nil && !bytes.Equal(now, data) {
			folder.Keep(name, now)
		}
	})
	return w
}

// readReports reads and verifies the reports of devices in the registry. One that is older than a report before does not count, and is told
// of once.
func (c *call) readReports(f *fleet.Fleet, seen *current.Watch) func(context.Context, *fleet.Device) (*artifacts.CurrentState, error) {
	var told sync.Map
	tell := func(s string) {
		if _, again := told.LoadOrStore(s, true); !again {
			c.note(true, "%s", s)
		}
	}
	return func(ctx context.Context, d *fleet.Device) (*artifacts.CurrentState, error) {
		at := f.ReportRepository(d)
		if at == "" {
			return nil, fmt.Errorf("report of %s: %w", d.ID, fault.ErrNotFound)
		}
		repo, err := c.registry.OpenName(ctx, at)
		if err != nil {
			return nil, err
		}
		var keys []signing.Key
		if d.ReportKey != nil {
			key, err := signing.ParsePublicKey(string(d.ID), d.ReportKey)
			if err != nil {
				return nil, err
			}
			keys = append(keys, key)
		}
		r, err := current.Read(ctx, repo.Upstream(), d.ID.Tag(), keys) // a mirror may show an old report
		if err == nil {
			note, err := seen.Take(r, c.now())
			if err != nil {
				tell(fmt.Sprintf("the report of %s does not count: %v", d.ID, err))
				return nil, err
			}
			if note != "" {
				tell(fmt.Sprintf("report of %s: %s", d.ID, note))
			}
			return r.CurrentState, nil
		}
		if len(keys) == 0 && !errors.Is(err, fault.ErrTemporary) && !errors.Is(err, fault.ErrNotFound) {
			err = fmt.Errorf("the fleet's files lack the device's public key %s: %w", path.Join(f.Reports.Keys, d.ID.Tag()+".pub"), fault.ErrBadSignature)
		}
		return nil, err
	}
}

// http is the fleet endpoint of the flags or of the files; nil if neither names one. Close it.
func (c *call) http(f *fleet.Fleet) (*endpoint.Client, error) {
	o := endpoint.Options{URL: c.String("endpoint"), UserAgent: "longshore/" + build.Version(), Proxy: http.ProxyFromEnvironment}
	typed := o.URL != ""
	if !typed {
		o.URL = f.Endpoint
	}
	if o.URL == "" {
		return nil, nil
	}
	for flag, into := range map[string]*string{"endpoint-password-file": &o.Password, "endpoint-token-file": &o.Token} {
		if file := c.String(flag); file != "" {
			if !typed { // an attacker who can change the file could name another host
				return nil, fault.WithHint(fmt.Errorf("fleet endpoint %s: --%s is not sent to an address that only the fleet's files name: %w", o.URL, flag, fault.ErrDenied),
					"if the address is right, add --endpoint "+o.URL+" (LONGSHORE_ENDPOINT)")
			}
			data, err := bounded.File(os.Open, file, maxEndpointFile)
			if err != nil {
				return nil, err
			}
			*into = strings.TrimSpace(string(data))
		}
	}
	if file := c.String("endpoint-ca-file"); file != "" {
		data, err := bounded.File(os.Open, file, maxEndpointFile)
		if err != nil {
			return nil, err
		}
		o.CA = data
	}
	return endpoint.New(o)
}

// loadCapabilities reads the reported capabilities of devices with capabilities: reported.
func (c *call) loadCapabilities(f *fleet.Fleet) error {
	e, err := c.endpoint(f)
	if err != nil {
		return err
	}
	if e == nil {
		return rollout.LoadCapabilities(c.Context, f, nil)
	}
	defer e.Close()
	return rollout.LoadCapabilities(c.Context, f, e)
}

// deviceReports are the newest reports of the chosen devices (nil: all); nil without a fleet endpoint.
func (c *call) deviceReports(f *fleet.Fleet, choose func(*fleet.Device) bool) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	e, err := c.endpoint(f)
	if e == nil || err != nil {
		return nil, err
	}
	defer e.Close()
	var ids []artifacts.DeviceID
	for _, d := range f.Devices {
		if choose == nil || choose(d) {
			ids = append(ids, d.ID)
		}
	}
	seen, err := e.Look(c.Context, ids)
	if err != nil {
		return nil, fmt.Errorf("read device reports: %w", err)
	}
	return seen, nil
}

// accepted returns fleet.Options.Accepted; nil without a fleet endpoint. The first call reads the reports of all devices.
func (c *call) accepted(f *fleet.Fleet) func(context.Context, artifacts.DeviceID) (uint64, error) {
	if c.String("endpoint") == "" && f.Endpoint == "" && f.Reports == nil {
		return nil
	}
	seen := sync.OnceValues(func() (map[artifacts.DeviceID]*rollout.DeviceReport, error) { return c.deviceReports(f, nil) })
	return func(_ context.Context, device artifacts.DeviceID) (uint64, error) {
		all, err := seen()
		if err != nil || all[device] == nil {
			return 0, err
		}
		return all[device].Accepted, nil
	}
}
