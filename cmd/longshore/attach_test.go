package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// documents writes what is attached.
func (s *shell) documents() {
	s.write("sbom.json", `{"spdxVersion": "SPDX-2.3", "name": "line-monitor"}`)
	s.write("bom.json", `{"bomFormat": "CycloneDX", "specVersion": "1.6"}`)
	s.write("provenance.json", `{"buildDefinition": {"buildType": "https://acme.example/ci"}, "runDetails": {"builder": {"id": "https://acme.example/ci"}}}`)
}

// A bill of materials and a provenance are signed statements with a key, for us and for cosign, and stand before the tag.
func TestAttachedAndSigned(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.documents()
	s.do(outcome.OK, "component", "push", "--key", "release.key", "--sbom", "sbom.json", "--sbom", "bom.json", "--provenance", "provenance.json", "./line-monitor", monitor+":1.4.0")
	for _, kind := range []string{"spdxjson", "cyclonedx", "https://slsa.dev/provenance/v1"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--attestation", kind, monitor+":1.4.0")
	}
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", monitor+":1.4.0")
	if said := s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "spdxjson", "--show-predicate", monitor+":1.4.0"); !strings.Contains(said, "SPDX-2.3") {
		t.Errorf("predicate %s", said)
	}
	if out, err := s.cosign3("verify-attestation", "--key", "release.pub", "--insecure-ignore-tlog", "--type", "spdxjson", s.real(monitor+":1.4.0")); err != nil {
		t.Errorf("cosign verify-attestation: %v\n%s", err, out)
	}
	if out, err := s.cosign3("verify-attestation", "--key", "release.pub", "--insecure-ignore-tlog", "--type", "slsaprovenance1", s.real(monitor+":1.4.0")); err != nil {
		t.Errorf("cosign verify-attestation: %v\n%s", err, out)
	}
	tagged := false
	for _, r := range s.server.Faults.Requests("PUT", "/plant/components/line-monitor/manifests/") {
		if strings.HasSuffix(r.Path, "/1.4.0") {
			tagged = true
		} else if tagged {
			t.Errorf("%s came after the tag", r.Path)
		}
	}
	s.do(outcome.OK, "app", "push", "--key", "release.key", "--sbom", "sbom.json", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "verify", "-q", "--no-recurse", "--key", "release.pub", "--attestation", "spdxjson", host+"/plant/apps/line:1.4.0")
}

// Without a key they are plain referrers of their own types; pushed again they are there once.
func TestAttachedPlain(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Referrers, testenv.Distribution} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.documents()
			var pushed componentResult
			for range 2 {
				out := s.do(outcome.OK, "component", "push", "-o", "json", "--sbom", "sbom.json", "--sbom", "bom.json", "--provenance", "provenance.json", "./line-monitor", monitor+":1.4.0")
				if err := json.Unmarshal([]byte(out), &pushed); err != nil {
					t.Fatal(err)
				}
			}
			if len(pushed.Attached) != 3 || pushed.Attached[0].Signed || pushed.Attached[2].MediaType != artifacts.TypeInToto {
				t.Errorf("attached %+v", pushed.Attached)
			}
			client, err := registry.New(registry.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			repo, err := client.OpenName(t.Context(), s.server.Host+"/plant/components/line-monitor")
			if err != nil {
				t.Fatal(err)
			}
			desc, err := repo.Resolve(t.Context(), "1.4.0")
			if err != nil {
				t.Fatal(err)
			}
			all, err := repo.Referrers(t.Context(), desc)
			if err != nil {
				t.Fatal(err)
			}
			kinds := map[string]int{}
			for _, d := range all {
				kinds[d.ArtifactType]++
			}
			for _, want := range []string{artifacts.TypeSPDX, artifacts.TypeCycloneDX, artifacts.TypeInToto} {
				if kinds[want] != 1 {
					t.Errorf("%d referrers of type %s, want 1: %v", kinds[want], want, kinds)
				}
			}
			_, manifest, err := repo.Manifest(t.Context(), pushed.Attached[2].Digest)
			if err != nil {
				t.Fatal(err)
			}
			o, err := artifacts.ReadOutline(manifest)
			if err != nil {
				t.Fatal(err)
			}
			data, err := repo.Blob(t.Context(), o.Layers[0], 1<<20)
			if err != nil || !strings.Contains(string(data), desc.Digest.Encoded()) || !strings.Contains(string(data), "buildDefinition") {
				t.Errorf("statement %s, %v", data, err)
			}
		})
	}
}

func TestAttachRefuses(t *testing.T) {
	s := newShell(t, testenv.Lax)
	s.documents()
	s.write("statement.json", `{"_type": "https://in-toto.io/Statement/v1", "subject": []}`)
	s.write("text.spdx", "SPDXVersion: SPDX-2.3")
	for _, c := range [][]string{
		{"--sbom", "provenance.json"}, {"--provenance", "sbom.json"}, {"--provenance", "statement.json"}, {"--sbom", "text.spdx"},
	} {
		code, _, stderr := s.try(append(append([]string{"component", "push"}, c...), "./line-monitor", monitor+":1.4.0")...)
		if code != outcome.Misused || !strings.Contains(stderr, c[1]) {
			t.Errorf("%v: exit %d\n%s", c, code, stderr)
		}
	}
	s.do(outcome.NotFound, "component", "push", "--sbom", "nowhere.json", "./line-monitor", monitor+":1.4.0")
	if n := len(s.server.Faults.Requests("PUT", "/plant/")) + len(s.server.Faults.Requests("POST", "/plant/")); n > 0 {
		t.Errorf("%d writes", n)
	}
}

// Platforms that devices do not have are left out of the lock; an image that is not for one of them is refused.
func TestComponentPlatforms(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	var pushed componentResult
	out := s.do(outcome.OK, "component", "push", "-o", "json", "--platform", "linux/arm64", "./line-monitor", monitor+":1.4.0")
	if err := json.Unmarshal([]byte(out), &pushed); err != nil {
		t.Fatal(err)
	}
	for _, i := range pushed.Images {
		if len(i.Platforms) != 1 || i.Platforms[0] != "linux/arm64" {
			t.Errorf("image %s is locked for %v", i.Reference, i.Platforms)
		}
	}
	s.refuses(outcome.Refused, []string{"library/caddy:2.10 is not for linux/riscv64", "library/nats:2.12 is not for linux/riscv64"},
		"component", "push", "--platform", "linux/amd64", "--platform", "linux/riscv64", "./line-monitor", monitor+":1.5.0")
	s.refuses(outcome.Misused, []string{`"arm64" is no platform`}, "component", "push", "--platform", "arm64", "./line-monitor", monitor+":1.5.0")
}

// Images in one registry, components in another, states in the first: each is asked with its own credentials.
func TestTwoRegistries(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	mine := testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithCredentials("anna", "of mine"))
	theirs := testenv.Registry(t, testenv.DistributionToken, testenv.WithCredentials("robot", "of theirs"))
	const images = "images.acme.example"
	home := s.server
	s.server = theirs
	for _, image := range []string{"library/caddy:2.10", "library/nats:2.12"} {
		s.pushImage(image, "linux/amd64", "linux/arm64")
	}
	s.server = mine
	s.write("certs.d/"+images+"/hosts.toml", "server = \""+theirs.URL+"\"\n")
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+mine.URL+"\"\n")
	text := strings.ReplaceAll(string(mustRead(t, "line-monitor/compose.yaml")), host, images)
	s.write("line-monitor/compose.yaml", text)
	push := []string{"component", "push", "./line-monitor", monitor + ":1.4.0"}
	s.do(outcome.Auth, push...)
	s.env["stdin"] = "of mine"
	s.do(outcome.OK, "login", "--username", "anna", "--password-stdin", host)
	s.do(outcome.Auth, push...) // the images' registry is another one
	// What is given on the command line is for the registry that the command line names, and for nobody else.
	s.do(outcome.Auth, append(push, "--username", "anna", "--password", "of mine")...)
	s.env["stdin"] = "of theirs"
	s.do(outcome.OK, "login", "--username", "robot", "--password-stdin", images)
	s.do(outcome.OK, push...)
	s.oneDevice("one", "line-monitor")
	s.do(outcome.OK, "fleet", "check", "one")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "one")
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", host+"/plant/one:press-07")
	for _, server := range []*testenv.RegistryServer{mine, theirs} {
		if server.Faults.Requests("GET", "/manifests/") == nil {
			t.Errorf("%s was not asked", server.Host)
		}
	}
	if n := len(home.Faults.Requests("", "/plant/")); n > 0 {
		t.Errorf("%d requests to a registry that nobody named", n)
	}
	// Without credentials for the images the states can be published nevertheless: devices may have their own.
	s.env["stdin"] = ""
	s.do(outcome.OK, "logout", images)
	s.change("one/fleet.yaml", "fleet: one", "fleet: two")
	if out := s.do(outcome.OK, "fleet", "check", "one"); !strings.Contains(out, "could not be checked") {
		t.Errorf("nobody is told that the images could not be checked\n%s", out)
	}
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "one")
}
