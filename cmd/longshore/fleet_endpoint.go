package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
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
		&cli.StringFlag{Name: "endpoint", Category: endpointCategory, Usage: "`URL` of the fleet endpoint that devices report to; else endpoint in fleet.yaml"},
		&cli.StringFlag{Name: "endpoint-password-file", Category: endpointCategory, Usage: "`FILE` with its password for viewers"},
		&cli.StringFlag{Name: "endpoint-token-file", Category: endpointCategory, Usage: "`FILE` with a bearer token instead, for a proxy in front of it"},
		&cli.StringFlag{Name: "endpoint-ca-file", Category: endpointCategory, Usage: "`FILE` with certificates to trust beside the system's"},
	}
}

// endpoint reads from the endpoint that the flags name, or the fleet's files; nil when neither does. Close it.
func (p *program) endpoint(c *cli.Context, f *fleet.Fleet) (*endpoint.Client, error) {
	o := endpoint.Options{URL: c.String("endpoint"), UserAgent: "longshore/" + build.Version(), Proxy: http.ProxyFromEnvironment}
	if o.URL == "" {
		o.URL = f.Endpoint
	}
	if o.URL == "" {
		return nil, nil
	}
	for flag, into := range map[string]*string{"endpoint-password-file": &o.Password, "endpoint-token-file": &o.Token} {
		if file := c.String(flag); file != "" {
			data, err := readBounded(file, maxEndpointFile)
			if err != nil {
				return nil, err
			}
			*into = strings.TrimSpace(string(data))
		}
	}
	if file := c.String("endpoint-ca-file"); file != "" {
		data, err := readBounded(file, maxEndpointFile)
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
