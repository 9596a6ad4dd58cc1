package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	issuer  = "https://login.acme.example"
	subject = "release@acme.example"
)

// seals are two instances of sigstore: the one that the device trusts, and the one that it trusted before, whose time in
// the trusted root is over.
type seals struct {
	now, before *keylesstest.Instance
}

// good is a signature as the device wants it. It is dated by the log: the instances' clocks run for minutes only.
var good = keylesstest.Flaws{NoStamp: true}

// onIdentity plays attacks on signatures without a key, to a device that believes in an identity and a trusted root.
func onIdentity(t *testing.T, p *plant, n int) {
	s := &seals{now: keylesstest.New(t), before: keylesstest.New(t)}
	d := newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{seals: s, policy: func(d *device) string {
		root := rootOf(t, s.now.Root(t), over(t, s.before.Root(t)))
		if err := os.WriteFile(d.path("trusted_root.json"), root, 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`identities:
  - {name: ci, issuer: %q, subject: %q}
trustedRoot: {file: %s}
rules:
  - {scope: "%s/plant/**", signers: [ci]}
`, issuer, subject, d.path("trusted_root.json"), d.host)
	}})
	d.withstandAll(t, impostors())
}

// impostors sign with an identity, time or proof that the device does not trust.
func impostors() []attack {
	signed := func(name string, seal func(t *testing.T, s *seals) sign.Keyless) attack {
		return attack{name, one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.seal(t, seal(t, d.seals), d.forge(t, 1<<40))
			return undo
		}}
	}
	flawed := func(name string, f keylesstest.Flaws) attack {
		return signed(name, func(t *testing.T, s *seals) sign.Keyless { return s.now.Keyless(t, issuer, subject, f) })
	}
	// The honest signature's own entry, of which only the log's promise or a time is another.
	changed := func(name string, change func(entry map[string]any)) attack {
		return signed(name, func(t *testing.T, s *seals) sign.Keyless {
			return func(_ context.Context, statement []byte) ([]byte, error) {
				return edited(s.now.Bundle(t, issuer, subject, statement, good), func(b map[string]any) { change(entryOf(b)) })
			}
		})
	}
	return []attack{
		signed("identity of somebody else", func(t *testing.T, s *seals) sign.Keyless {
			return s.now.Keyless(t, issuer, "mallory@acme.example", good)
		}),
		signed("identity by another provider", func(t *testing.T, s *seals) sign.Keyless {
			return s.now.Keyless(t, "https://login.acme.example.evil.example", subject, good)
		}),
		flawed("certificate by an authority of the same name", keylesstest.Flaws{NoStamp: true, Foreign: true}),
		flawed("certificate that is in no log", keylesstest.Flaws{NoStamp: true, NoSCT: true}),
		flawed("certificate in the log of somebody else", keylesstest.Flaws{NoStamp: true, OtherSCT: true}),
		flawed("signature that is in no log", keylesstest.Flaws{NoLog: true}),
		flawed("signature logged after its certificate's time", keylesstest.Flaws{NoStamp: true, Late: time.Hour}),
		flawed("signature whose timestamp was stripped", keylesstest.Flaws{NoTime: true, NoStamp: true}),
		changed("log entry whose time was changed", func(entry map[string]any) { entry["integratedTime"] = fmt.Sprint(time.Now().Add(-time.Minute).Unix()) }),
		signed("log entry of another signature", func(t *testing.T, s *seals) sign.Keyless {
			return func(_ context.Context, statement []byte) ([]byte, error) {
				var other map[string]any
				if err := json.Unmarshal(s.now.Bundle(t, issuer, subject, []byte(`{"_type":"https://in-toto.io/Statement/v1"}`), good), &other); err != nil {
					return nil, err
				}
				return edited(s.now.Bundle(t, issuer, subject, statement, good), func(b map[string]any) {
					material(b)["tlogEntries"] = material(other)["tlogEntries"]
				})
			}
		}),
		signed("log entry by a log that nobody trusts", func(t *testing.T, s *seals) sign.Keyless {
			return func(_ context.Context, statement []byte) ([]byte, error) {
				var other map[string]any
				if err := json.Unmarshal(keylesstest.New(t).Bundle(t, issuer, subject, statement, good), &other); err != nil {
					return nil, err
				}
				return edited(s.now.Bundle(t, issuer, subject, statement, good), func(b map[string]any) {
					material(b)["tlogEntries"] = material(other)["tlogEntries"]
				})
			}
		}),
		signed("instance whose time in the trusted root is over", func(t *testing.T, s *seals) sign.Keyless { return s.before.Keyless(t, issuer, subject, good) }),
		{"signature by an identity of another state", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			d.borrowFirst(t, honest, d.forge(t, 1<<40))
			return undo
		}},
		{"key in the place of an identity", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.sign(t, "release", d.forge(t, 1<<40))
			return undo
		}},
	}
}

// seal signs a state in the name of an identity.
func (d *device) seal(t *testing.T, seal sign.Keyless, state ocispec.Descriptor) {
	t.Helper()
	s, err := sign.NewKeylessSigner(seal, nil, sign.Options{Name: subject})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sign(t.Context(), d.open(t, "plant/state"), state); err != nil {
		t.Fatal(err)
	}
}

// borrowFirst puts every signature of one state beside another.
func (d *device) borrowFirst(t *testing.T, from, to ocispec.Descriptor) {
	t.Helper()
	listed, err := d.open(t, "plant/state").Referrers(t.Context(), from)
	if err != nil || len(listed) == 0 {
		t.Fatalf("referrers: %v, %v", listed, err)
	}
	for _, l := range listed {
		d.lend(t, d.manifestAt(t, l.Digest), to)
	}
}

// edited changes a bundle.
func edited(bundle []byte, change func(b map[string]any)) ([]byte, error) {
	var b map[string]any
	if err := json.Unmarshal(bundle, &b); err != nil {
		return nil, err
	}
	change(b)
	return json.Marshal(b)
}

func material(b map[string]any) map[string]any {
	return b["verificationMaterial"].(map[string]any)
}

func entryOf(b map[string]any) map[string]any {
	return material(b)["tlogEntries"].([]any)[0].(map[string]any)
}

// rootOf puts trusted roots into one.
func rootOf(t *testing.T, roots ...[]byte) []byte {
	t.Helper()
	all := map[string]any{}
	for _, data := range roots {
		var r map[string]any
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		for k, v := range r {
			if list, ok := v.([]any); ok {
				before, _ := all[k].([]any)
				v = append(before, list...)
			}
			all[k] = v
		}
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// over is a trusted root whose authorities, logs and clocks are of the past.
func over(t *testing.T, root []byte) []byte {
	t.Helper()
	var r any
	if err := json.Unmarshal(root, &r); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if valid, ok := v["validFor"].(map[string]any); ok {
				valid["end"] = time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)
				n++
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(r)
	if n == 0 {
		t.Fatal("the trusted root says nothing of when it is valid")
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
