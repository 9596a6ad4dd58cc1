package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/endpoint"
	"github.com/longshore-dev/longshore/fleet/reported"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/current"
)

const endpointCategory = "Fleet endpoint"

// maxEndpointFile bounds a password, a token, certificates.
const maxEndpointFile = 1 << 20

// endpointFlags are how to ask what devices report.
func endpointFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "endpoint", Category: endpointCategory, Usage: "`URL` of the fleet endpoint that devices report to; default: endpoint in fleet.yaml"},
		&cli.StringFlag{Name: "endpoint-password-file", Category: endpointCategory, Usage: "`FILE` with the viewers' password"},
		&cli.StringFlag{Name: "endpoint-token-file", Category: endpointCategory, Usage: "`FILE` with a bearer token instead of the password, for a proxy"},
		&cli.StringFlag{Name: "endpoint-ca-file", Category: endpointCategory, Usage: "`FILE` with CA certificates to trust in addition to the system's"},
	}
}

// asked is where devices tell how they are. Close it.
type asked struct {
	rollout.Endpoint
	registry *reported.Source // nil: devices do not report through the registry
	close    []func()
}

func (a *asked) Close() {
	for _, f := range a.close {
		f()
	}
}

// unverified tells why what a device reported in the registry does not count; "": it counts, or there is nothing.
func (a *asked) unverified(id artifacts.DeviceID) string {
	if a.registry == nil {
		return ""
	}
	return a.registry.Unverified(id)
}

// endpoint asks the endpoint that the flags name, or the fleet's files, and reads the reports in the registry where the files say
// that there are some; nil when there is neither. Close it.
func (p *program) endpoint(c *cli.Context, f *fleet.Fleet) (*asked, error) {
	e, err := p.http(c, f)
	if err != nil {
		return nil, err
	}
	out := &asked{}
	if e != nil {
		out.Endpoint, out.close = e, append(out.close, e.Close)
	}
	if f.Reports != nil {
		client, err := p.client(c)
		if err != nil {
			out.Close()
			return nil, err
		}
		out.close = append(out.close, client.Close)
		out.registry = &reported.Source{Fleet: f, Read: readReports(client, f), Now: p.now}
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

// readReports reads and verifies what devices report in the registry.
func readReports(client *registry.Client, f *fleet.Fleet) func(context.Context, *fleet.Device) (*artifacts.CurrentState, error) {
	return func(ctx context.Context, d *fleet.Device) (*artifacts.CurrentState, error) {
		at := f.ReportRepository(d)
		if at == "" {
			return nil, fmt.Errorf("report of %s: %w", d.ID, fault.ErrNotFound)
		}
		repo, err := client.OpenName(ctx, at)
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
		r, err := current.Read(ctx, repo.Upstream(), d.ID.Tag(), keys) // a mirror may show an old one
		if err == nil {
			return r.CurrentState, nil
		}
		if len(keys) == 0 && !errors.Is(err, fault.ErrTemporary) && !errors.Is(err, fault.ErrNotFound) {
			err = fmt.Errorf("the fleet's files lack the device's public key %s: %w", path.Join(f.Reports.Keys, d.ID.Tag()+".pub"), fault.ErrBadSignature)
		}
		return nil, err
	}
}

// http is the endpoint that the flags name, or the fleet's files; nil when neither does. Close it.
func (p *program) http(c *cli.Context, f *fleet.Fleet) (*endpoint.Client, error) {
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
			if !typed { // whoever may change the file would name a host of theirs
				return nil, fault.WithHint(fmt.Errorf("fleet endpoint %s: what --%s holds is not sent to an address that only the fleet's files name: %w", o.URL, flag, fault.ErrDenied),
					"if it is meant for that address, add --endpoint "+o.URL+" (LONGSHORE_ENDPOINT)")
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

// equip gives devices the capabilities that they have reported, where the files say so.
func (p *program) equip(c *cli.Context, f *fleet.Fleet) error {
	e, err := p.endpoint(c, f)
	if err != nil {
		return err
	}
	if e == nil {
		return rollout.LoadCapabilities(c.Context, f, nil)
	}
	defer e.Close()
	return rollout.LoadCapabilities(c.Context, f, e)
}

// sightings are what devices have reported last, those that choose chooses (nil: all); nil where there is no endpoint to ask.
func (p *program) sightings(c *cli.Context, f *fleet.Fleet, choose func(*fleet.Device) bool) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	e, err := p.endpoint(c, f)
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
		return nil, fmt.Errorf("ask how devices are: %w", err)
	}
	return seen, nil
}

// accepted returns what fleet.Options.Accepted is for devices of a fleet; nil where there is no endpoint. The endpoint is asked when the
// first device needs it, once for all of them.
func (p *program) accepted(c *cli.Context, f *fleet.Fleet) func(context.Context, artifacts.DeviceID) (uint64, error) {
	if c.String("endpoint") == "" && f.Endpoint == "" && f.Reports == nil {
		return nil
	}
	seen := sync.OnceValues(func() (map[artifacts.DeviceID]*rollout.DeviceReport, error) { return p.sightings(c, f, nil) })
	return func(_ context.Context, device artifacts.DeviceID) (uint64, error) {
		all, err := seen()
		if err != nil || all[device] == nil {
			return 0, err
		}
		return all[device].Accepted, nil
	}
}
