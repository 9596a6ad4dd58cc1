package main

import (
	"fmt"
	"testing"

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
