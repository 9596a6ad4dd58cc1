package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// With COSIGN_REPOSITORY signatures are kept in another repository, by every command that signs, and found there by every
// one that verifies; a policy says itself where they are.
func TestSignaturesElsewhere(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component, state := monitor+":1.4.0", states+":press-07"
	s.env["COSIGN_REPOSITORY"] = host + "/plant/signatures"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", state)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states) // follows what it signed
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", component)
	s.write("release.pub.json", `{"result":"fine"}`)
	s.do(outcome.OK, "attest", "-q", "--key", "release.key", "--type", "https://example.com/checked/v1", "--predicate", "release.pub.json", component)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--attestation", "https://example.com/checked/v1", component)
	for _, renewed := range []int{1, 0} { // the second finds what the first said, there
		if r := s.freshened(outcome.OK, "--key", "release.key", state); r.Renewed != renewed {
			t.Errorf("freshen = %+v, want %d renewed", r, renewed)
		}
	}
	for _, args := range [][]string{ // a layout keeps its own
		{"sign", "--key", "release.key", "oci-layout:stick:1.4.0"},
		{"attest", "--key", "release.key", "--type", "https://example.com/checked/v1", "--predicate", "release.pub.json", "oci-layout:stick:1.4.0"},
		{"verify", "--key", "release.pub", "--kind", "component", "oci-layout:stick:1.4.0"},
	} {
		s.do(outcome.OK, "component", "push", "-q", "./line-monitor", "oci-layout:stick:1.4.0")
		if code, stdout, stderr := s.try(args...); code == outcome.OK || !strings.Contains(stdout+stderr, "oci-layout:stick") || !strings.Contains(stdout+stderr, "is a layout on disk, which stores its own signatures") {
			t.Errorf("%v of a layout = %d\n%s%s", args, code, stdout, stderr)
		}
	}
	delete(s.env, "COSIGN_REPOSITORY")
	s.do(outcome.Verification, "verify", "-q", "--key", "release.pub", state)
	s.do(outcome.Verification, "verify", "-q", "--key", "release.pub", component)
	rule := "rules:\n  - {scope: " + host + "/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}]"
	s.write("beside.yaml", rule+"}\n")
	s.write("elsewhere.yaml", rule+", signatures: "+host+"/plant/signatures}\n")
	s.do(outcome.Verification, "verify", "-q", "--policy", "beside.yaml", state)
	s.do(outcome.OK, "verify", "-q", "--policy", "elsewhere.yaml", state)
	// What a policy asks to be said about a component is looked for there, too; and so is freshness.
	said := strings.Replace(rule, "state, component", "component", 1) + ", attestations: [{type: https://example.com/checked/v1, signers: [release]}]"
	s.write("said-beside.yaml", said+"}\n")
	s.write("said-elsewhere.yaml", said+", signatures: "+host+"/plant/signatures}\n")
	s.do(outcome.Verification, "verify", "-q", "--policy", "said-beside.yaml", component)
	s.do(outcome.OK, "verify", "-q", "--policy", "said-elsewhere.yaml", component)
	s.do(outcome.OK, "verify", "-q", "--policy", "said-elsewhere.yaml", "--attestation", "https://example.com/checked/v1", component)
	fresh := strings.Replace(rule, "state, component", "state", 1) + ", freshness: {signers: [release]}"
	s.write("fresh-beside.yaml", fresh+"}\n")
	s.write("fresh-elsewhere.yaml", fresh+", signatures: "+host+"/plant/signatures}\n")
	s.do(outcome.Verification, "verify", "-q", "--no-recurse", "--policy", "fresh-beside.yaml", state)
	s.do(outcome.OK, "verify", "-q", "--no-recurse", "--policy", "fresh-elsewhere.yaml", state)
}

// The credentials of the command line are for what it names itself, not for a registry that a policy document names.
func TestSignaturesElsewhereGetNoCredentials(t *testing.T) {
	s := newShell(t, testenv.DistributionHtpasswd)
	other := testenv.Registry(t, testenv.DistributionHtpasswd)
	seen := map[*testenv.RegistryServer][]string{}
	var mu sync.Mutex
	for _, server := range []*testenv.RegistryServer{s.server, other} {
		server.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			mu.Lock()
			seen[server] = append(seen[server], r.Header.Get("Authorization"))
			mu.Unlock()
			next.ServeHTTP(w, r)
		}})
	}
	state := s.server.Reference("plant/state")
	s.env["LONGSHORE_USERNAME"], s.env["LONGSHORE_PASSWORD"] = s.server.Username, s.server.Password
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", state)
	s.write("elsewhere.yaml", "rules:\n  - {scope: "+s.server.Host+"/**, keys: [{name: release, file: release.pub}], signatures: "+other.Reference("plant/signatures")+"}\n")
	for _, args := range [][]string{
		{"verify", "-q", "--policy", "elsewhere.yaml", state + ":press-07"},
		{"policy", "test", "elsewhere.yaml", state + ":press-07"},
		{"freshen", "--key", "release.key", "--policy", "elsewhere.yaml", state + ":press-07"},
	} {
		s.do(outcome.Auth, args...)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen[other]) == 0 || slices.ContainsFunc(seen[other], func(sent string) bool { return sent != "" }) {
		t.Errorf("the policy's registry got %q, want questions without credentials", seen[other])
	}
	if !slices.ContainsFunc(seen[s.server], func(sent string) bool { return sent != "" }) {
		t.Errorf("the registry of the command line got %q, want credentials", seen[s.server])
	}
}

// Signatures that a policy, or COSIGN_REPOSITORY, says are in another repository come to the site with what they sign.
func TestSignaturesElsewhereTravel(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		for _, way := range []string{"mirror", "export", "tar"} {
			t.Run(string(kind)+" "+way, func(t *testing.T) {
				s := newShell(t, kind)
				there := s.site(kind)
				const signatures = host + "/plant/signatures"
				s.env["COSIGN_REPOSITORY"] = signatures
				s.stock()
				s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", monitor+":1.4.0")
				push := func(poll string) {
					t.Helper()
					s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS="+poll, states)
				}
				push("5")
				delete(s.env, "COSIGN_REPOSITORY")
				s.write("elsewhere.yaml", "rules:\n  - {scope: "+host+"/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}], signatures: "+signatures+"}\n")
				bring := func(who ...string) {
					t.Helper()
					switch way {
					case "mirror":
						s.do(outcome.OK, append(append([]string{"mirror", "-q"}, who...), states, siteHost)...)
					case "tar":
						s.do(outcome.OK, append(append([]string{"export", "-q", "--tar"}, who...), states, "stick")...)
						s.do(outcome.OK, append(append([]string{"import", "-q"}, who...), "stick", siteHost)...)
					default:
						s.do(outcome.OK, append(append([]string{"export", "-q"}, who...), states, "stick")...)
						s.do(outcome.OK, append(append([]string{"import", "-q"}, who...), "stick", siteHost)...)
					}
				}
				atSite := func() {
					t.Helper()
					s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
					s.do(outcome.OK, "verify", "-q", "--policy", "elsewhere.yaml", states+":press-07")
					s.do(outcome.OK, "verify", "-q", "--policy", "elsewhere.yaml", monitor+":1.4.0")
					s.write("certs.d/"+host+"/hosts.toml", "server = \""+s.server.URL+"\"\n")
				}
				bring("--policy", "elsewhere.yaml")
				atSite()
				s.env["COSIGN_REPOSITORY"] = signatures
				push("6")
				bring(releaseKeyPublic)
				delete(s.env, "COSIGN_REPOSITORY")
				atSite()
			})
		}
	}
}

// They leave the site with what they sign.
func TestSitePruneOfSignaturesElsewhere(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			there := s.site(kind)
			const signatures = host + "/plant/signatures"
			s.env["COSIGN_REPOSITORY"] = signatures
			s.stock()
			s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", monitor+":1.4.0")
			for _, what := range [][]string{{"--component", monitor + ":1.4.0"}, {"--empty"}, {"--component", sensor}} {
				s.do(outcome.OK, append(append([]string{"state", "push", "-q", "-d", "press-07", "--key", "release.key"}, what...), states)...)
			}
			s.write("elsewhere.yaml", "rules:\n  - {scope: "+host+"/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}], signatures: "+signatures+"}\n")
			s.do(outcome.OK, "mirror", "-q", "--no-verify", "--history", "5", states, siteHost)
			delete(s.env, "COSIGN_REPOSITORY")
			at, from := opened(t, there.Reference("plant/signatures")), opened(t, there.Reference("plant/state"))
			signed := func(number int) int {
				t.Helper()
				d, err := opened(t, s.server.Reference("plant/state")).Resolve(t.Context(), fmt.Sprintf("press-07.v%d", number))
				if err != nil {
					t.Fatal(err)
				}
				list, err := at.Referrers(t.Context(), d)
				if err != nil {
					t.Fatal(err)
				}
				return len(list)
			}
			if signed(1) == 0 || signed(3) == 0 {
				t.Fatalf("%d and %d signatures came to the site", signed(1), signed(3))
			}
			s.do(outcome.OK, "site", "prune", "-q", "--history", "0", "--policy", "elsewhere.yaml", states, siteHost)
			if _, err := from.Resolve(t.Context(), "press-07.v1"); err == nil || signed(1) != 0 || signed(3) == 0 {
				t.Errorf("generation 1 has %d signatures, generation 3 %d: %v", signed(1), signed(3), err)
			}
			tags, err := at.Tags(t.Context())
			if err != nil || slices.ContainsFunc(tags, func(tag string) bool { return strings.HasSuffix(tag, ".sig") }) {
				t.Errorf("signatures of the component: %v, %v", tags, err)
			}
		})
	}
}
