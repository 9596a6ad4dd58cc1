package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// What real cosign of both versions verifies at the source, version 2 the older format and version 3 bundles, it verifies at the site, on registries with each way of
// keeping referrers: a state, a component, an image index and the image of one platform in it. Digests are the same.
func TestMirrorForCosign(t *testing.T) {
	for _, kinds := range [][2]testenv.Kind{
		{testenv.Distribution, testenv.Referrers}, {testenv.Referrers, testenv.Distribution}, {testenv.Distribution, testenv.Lax}, {testenv.Distribution, testenv.Distribution},
	} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			s := newShell(t, kinds[0])
			s.stock()
			there := s.site(kinds[1])
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--signature-format", "both", "--component", monitor+":1.4.0", states)
			digest := func(repository, tag string) string {
				d, err := opened(t, s.server.Reference(repository)).Resolve(t.Context(), tag)
				if err != nil {
					t.Fatal(err)
				}
				return d.Digest.String()
			}
			index := opened(t, s.server.Reference("library/caddy"))
			top, err := index.Resolve(t.Context(), "2.10")
			if err != nil {
				t.Fatal(err)
			}
			children, err := index.Below(t.Context(), top.Digest)
			if err != nil || len(children) != 2 {
				t.Fatalf("the index has %v, %v", children, err)
			}
			formats := map[string]string{
				"plant/components/line-monitor@" + digest("plant/components/line-monitor", "1.4.0"): "legacy",
				"library/caddy@" + top.Digest.String():                                              "bundle",
				"library/caddy@" + children[0].Digest.String():                                      "legacy",
			}
			for one, format := range formats {
				s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", format, host+"/"+one)
			}
			formats["plant/state@"+digest("plant/state", "press-07")] = "both"
			s.mirrored()
			for one, format := range formats {
				program := "cosign3"
				if format == "legacy" { // beside a bundle, version 2 asks for Sigstore's trusted root
					program = "cosign2"
				}
				for _, at := range []*testenv.RegistryServer{s.server, there} {
					for key, good := range map[string]bool{"release.pub": true, "other.pub": false} {
						out, err := s.cosign(program, "verify", "--key", key, "--insecure-ignore-tlog", at.Reference(one))
						if (err == nil) != good {
							t.Errorf("%s verify --key %s %s at the %s registry: %v\n%s", program, key, one, at.Kind, err, out)
						}
					}
				}
			}
		})
	}
}

// SBOMs and attestations of real cosign arrive at the site, in both layouts, with what refers to them: the signature of an SBOM is under a
// tag of its own in the older one. It is also copied if it was made after the SBOM had arrived.
func TestMirrorAttestations(t *testing.T) {
	for _, kinds := range [][2]testenv.Kind{
		{testenv.Distribution, testenv.Referrers}, {testenv.Referrers, testenv.Distribution}, {testenv.Distribution, testenv.Lax}, {testenv.Distribution, testenv.Distribution},
	} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			s := newShell(t, kinds[0])
			s.stock()
			there := s.site(kinds[1])
			s.write("config.json", `{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","rekorTlogConfig":{},"tsaConfig":{}}`)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			const legacy, bundle = "plant/components/line-monitor:1.4.0", "library/caddy:2.10"
			component, image := s.server.Reference(legacy), s.server.Reference(bundle)
			s.attached(component)
			s.made("cosign3", "attest", "--key", "release.key", "--yes", "--signing-config", "config.json", "--type", "spdxjson", "--predicate", "sbom.spdx.json", image)
			s.mirrored()
			again := func() {
				t.Helper()
				if out := s.do(outcome.OK, "site", "plan", states, siteHost); !strings.Contains(out, " 0 B to copy") {
					t.Errorf("the site has everything:\n%s", out)
				}
			}
			again()
			s.made("cosign2", "sign", "--key", "release.key", "--yes", "--tlog-upload=false", "--attachment", "sbom", component)
			if r := s.mirrored(); r.Referrers != 1 {
				t.Errorf("%+v, want the signature of the SBOM", r.Copied)
			}
			again()
			for _, args := range [][]string{
				{"cosign2", "verify", "--attachment", "sbom", legacy},
				{"cosign2", "verify-attestation", "--type", "spdxjson", legacy},
				{"cosign3", "verify-attestation", "--type", "spdxjson", bundle},
			} {
				for _, at := range []*testenv.RegistryServer{s.server, there} {
					for key, good := range map[string]bool{"release.pub": true, "other.pub": false} {
						ref := slices.Concat(args[1:len(args)-1], []string{"--key", key, "--insecure-ignore-tlog", s.pinned(at, args[len(args)-1])})
						if out, err := s.cosign(args[0], ref...); (err == nil) != good {
							t.Errorf("%s %v at the %s registry: %v\n%s", args[0], ref, at.Kind, err, out)
						}
					}
				}
			}
			for range 2 { // the generation before the current one stays
				s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
				s.mirrored()
			}
			s.do(outcome.OK, "site", "prune", "--history", "0", states, siteHost)
			for _, name := range []string{"plant/components/line-monitor", "library/caddy"} {
				tags, err := opened(t, there.Reference(name)).Tags(t.Context())
				if err != nil && !errors.Is(err, fault.ErrNotFound) {
					t.Fatal(err)
				}
				for _, tag := range tags {
					if strings.HasPrefix(tag, "sha256-") {
						t.Errorf("%s:%s is left after a prune", name, tag)
					}
				}
			}
		})
	}
}

// made runs a real cosign that must do what it is told.
func (s *shell) made(program string, args ...string) {
	s.t.Helper()
	if out, err := s.cosign(program, args...); err != nil {
		s.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// attached has cosign put an SBOM and an attestation beside an artifact, in the older layout.
func (s *shell) attached(ref string) {
	s.t.Helper()
	s.write("sbom.spdx.json", sbom)
	s.made("cosign2", "attach", "sbom", "--sbom", "sbom.spdx.json", ref)
	s.made("cosign2", "attest", "--key", "release.key", "--yes", "--tlog-upload=false", "--type", "spdxjson", "--predicate", "sbom.spdx.json", ref)
}

// pinned is an artifact at a registry by the digest that its tag has at the source: images have another tag at the site.
func (s *shell) pinned(at *testenv.RegistryServer, ref string) string {
	s.t.Helper()
	name, tag, _ := strings.Cut(ref, ":")
	d, err := opened(s.t, s.server.Reference(name)).Resolve(s.t.Context(), tag)
	if err != nil {
		s.t.Fatal(err)
	}
	return at.Reference(name + "@" + d.Digest.String())
}
