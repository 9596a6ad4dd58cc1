package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/endpoint"
	"github.com/longshore-dev/longshore/fleet/rollout"
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

// endpoint reads from the endpoint that the flags name, or the fleet's files; nil when neither does. Close it.
func (p *program) endpoint(c *cli.Context, f *fleet.Fleet) (*endpoint.Client, error) {
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
		return rollout.Equip(c.Context, f, nil)
	}
	defer e.Close()
	return rollout.Equip(c.Context, f, e)
}

// sightings are what devices have reported last, those that choose chooses (nil: all); nil where there is no endpoint to ask.
func (p *program) sightings(c *cli.Context, f *fleet.Fleet, choose func(*fleet.Device) bool) (map[artifacts.DeviceID]*rollout.Sighting, error) {
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
	if c.String("endpoint") == "" && f.Endpoint == "" {
		return nil
	}
	seen := sync.OnceValues(func() (map[artifacts.DeviceID]*rollout.Sighting, error) { return p.sightings(c, f, nil) })
	return func(_ context.Context, device artifacts.DeviceID) (uint64, error) {
		all, err := seen()
		if err != nil || all[device] == nil {
			return 0, err
		}
		return all[device].Accepted, nil
	}
}
