package artifacts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

func currentState() *artifacts.CurrentState {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	return &artifacts.CurrentState{
		Device: "gw/press-07", Epoch: "0b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11", Counter: 12, Sequence: 57, Time: at,
		Every: 3600, BootID: "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11", Repository: "harbor.example/plant/state",
		Accepted:  &artifacts.CurrentGeneration{Generation: 42, Digest: digest.FromString("42")},
		Running:   &artifacts.CurrentGeneration{Generation: 42, Digest: digest.FromString("42")},
		Committed: &artifacts.CurrentGeneration{Generation: 41, Digest: digest.FromString("41")},
		Refused:   &artifacts.CurrentRefusal{Generation: 43, Digest: digest.FromString("43"), Code: "signature-invalid", Message: "no key matches", Since: at},
		Deployments: []artifacts.CurrentDeployment{{
			ID: "00000000-0000-4000-8000-000000000001", Name: "line", Generation: 42, State: margo.StateFailed, Since: at,
			Error: &margo.StatusError{Code: "exited", Source: "line", Message: "it ended"},
			Components: []artifacts.CurrentComponent{{
				Name: "web", Revision: "1.4.0", Digest: digest.FromString("web"), State: margo.StateFailed, Since: at,
				Images: []artifacts.CurrentImage{{Image: "harbor.example/caddy@" + digest.FromString("caddy").String(), Containers: 2}},
			}},
		}},
		Capabilities: json.RawMessage(`{"properties":{"id":"gw/press-07","vendor":"v","modelNumber":"m","serialNumber":"s"},"x-longshore-extensions":{"agentVersion":"1"}}`),
	}
}

func TestCurrentState(t *testing.T) {
	c := currentState()
	statement, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := artifacts.ParseCurrentState("report", statement)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, back); diff != "" {
		t.Errorf("it parses to something else (-want +got):\n%s", diff)
	}
	a, err := artifacts.PackCurrentState(c, statement) // stands for the bundle, which is not looked into here
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "current-state", show(t, a))
	x, err := artifacts.OpenCurrentState(a.Manifest)
	if err != nil || x.Device != "gw/press-07" || x.Counter != 12 {
		t.Fatalf("OpenCurrentState = %+v, %v", x, err)
	}
	if data, err := x.Read(from(a, nil)); err != nil || !bytes.Equal(data, statement) {
		t.Errorf("Read = %q, %v", data, err)
	}
	if _, err := x.Read(func(ocispec.Descriptor) ([]byte, error) { return []byte("another"), nil }); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("Read of other bytes: %v", err)
	}
	status := c.Deployments[0].Status(c.Device)
	if status.DeviceID != "gw/press-07" || status.Status.State != margo.StateFailed || len(status.Components) != 1 {
		t.Errorf("Status = %+v", status)
	}
}

// A device that has accepted nothing reports, too.
func TestCurrentStateOfNothing(t *testing.T) {
	c := currentState()
	c.Accepted, c.Running, c.Committed, c.Refused, c.Deployments, c.BootID = nil, nil, nil, nil, []artifacts.CurrentDeployment{}, ""
	statement, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := artifacts.ParseCurrentState("report", statement)
	if diff := cmp.Diff(c, back); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestParseCurrentStateRefuses(t *testing.T) {
	statement, err := currentState().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string][2]string{
		"another statement":      {artifacts.PredicateCurrentState, "https://sigstore.dev/cosign/sign/v1"},
		"unknown member":         {`"counter":12`, `"counter":12,"count":1`},
		"counter zero":           {`"counter":12`, `"counter":0`},
		"twice":                  {`"counter":12`, `"counter":12,"counter":13`},
		"no device":              {`"device":"gw/press-07"`, `"device":""`},
		"capabilities of others": {`"id":"gw/press-07","vendor"`, `"id":"press-08","vendor"`},
		"another subject":        {`"sha256":"` + digest.FromString("42").Encoded(), `"sha256":"` + digest.FromString("44").Encoded()},
		"no subjects":            {`"subject":[`, `"subject":[],"x":[`},
		"epoch":                  {`"epoch":"0b9c9a4e`, `"epoch":"0B9c9a4e`},
		"state":                  {`"state":"failed"`, `"state":"well"`},
		"image by tag":           {`caddy@sha256:`, `caddy:sha256-`},
		"long sentence":          {`"message":"it ended"`, `"message":"` + strings.Repeat("x", 4096) + `"`},
		"no capabilities":        {`"capabilities":{`, `"capability":{`},
	} {
		t.Run(name, func(t *testing.T) {
			forged := strings.Replace(string(statement), tt[0], tt[1], 1)
			if forged == string(statement) {
				t.Fatalf("%q is not in %s", tt[0], statement)
			}
			if c, err := artifacts.ParseCurrentState("report", []byte(forged)); err == nil {
				t.Errorf("ParseCurrentState = %+v", c)
			}
		})
	}
	if _, err := artifacts.ParseCurrentState("report", make([]byte, artifacts.MaxCurrentState+1)); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("a large one: %v", err)
	}
}

func TestOpenCurrentStateRefuses(t *testing.T) {
	a, err := artifacts.PackCurrentState(currentState(), []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string][3]string{
		"another artifact": {`"artifactType":"` + artifacts.TypeCurrentState, `"artifactType":"` + artifacts.TypeState, "unsupported"},
		"another layer":    {`"mediaType":"` + artifacts.TypeCurrentBundle, `"mediaType":"text/plain`, "unsupported"},
		"large":            {`"size":2,"annotations"`, `"size":10485760,"annotations"`, "too large"},
		"counter":          {`counter":"12"`, `counter":"012"`, "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			forged := strings.Replace(string(a.Manifest), tt[0], tt[1], 1)
			if x, err := artifacts.OpenCurrentState([]byte(forged)); err == nil || !strings.Contains(err.Error(), tt[2]) || forged == string(a.Manifest) {
				t.Errorf("OpenCurrentState = %+v, %v", x, err)
			}
		})
	}
	if _, err := artifacts.PackCurrentState(currentState(), make([]byte, artifacts.MaxCurrentState+1)); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("PackCurrentState of a large bundle: %v", err)
	}
}

func FuzzCurrentState(f *testing.F) {
	statement, err := currentState().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(statement)
	f.Add(bytes.Replace(statement, []byte(`"agentVersion":"1"`), []byte(`"transitions":{"after":3,"list":[{"sequence":4,"at":"2026-11-23T12:00:00Z",`+
		`"deployment":"00000000-0000-4000-8000-000000000001","generation":1,"state":"failed","error":{"code":"exited"}},{"sequence":"5"},null]}`), 1))
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{}}],"predicateType":"https://longshore.dev/current-state/v1","predicate":{"deployments":[{"components":[{"images":[{}]}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := artifacts.PeekCurrentState(data); (c == nil) == (err == nil) {
			t.Errorf("PeekCurrentState = %v, %v", c, err)
		}
		c, err := artifacts.ParseCurrentState("report", data)
		if err != nil {
			return
		}
		turned := c.Transitions()
		last := turned.After
		for _, x := range turned.List {
			if x.Sequence <= last || x.Sequence >= c.Sequence || x.Deployment == "" || x.State == "" {
				t.Errorf("transition %+v after %d in report %d", x, last, c.Sequence)
			}
			last = x.Sequence
		}
		if len(turned.List) > artifacts.MaxTransitions {
			t.Errorf("%d transitions", len(turned.List))
		}
		again, err := c.Encode()
		if err != nil {
			t.Fatalf("Encode of what was parsed: %v", err)
		}
		back, err := artifacts.ParseCurrentState("report", again)
		if diff := cmp.Diff(c.Deployments, back.Deployments); err != nil || diff != "" || back.Counter != c.Counter {
			t.Errorf("it parses to something else: %v\n%s", err, diff)
		}
	})
}
