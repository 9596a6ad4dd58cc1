package artifacts_test

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestDeviceTag(t *testing.T) {
	long := strings.Repeat("a", 96)
	for id, want := range map[string]string{
		"press-07":           "press-07",
		"Press_07.graz":      "Press_07.graz",
		"gateway-1/press-07": "gateway-1__press-07",
		"a/b/c":              "a__b__c",
		long:                 long,
		"_a":                 "_a",
		"d-1":                "d-1",
		"v42":                "v42",
		"a.v42.b":            "a.v42.b",
		// no valid tags
		"press~07": "d-0aa4429fc405e35b1899ef59bbd0d5e6",
		".press":   "d-",
		"-press":   "d-",
		long + "a": "d-",
		// not unique: another id, or another purpose, has that tag
		"a__b":                               "d-",
		"a_/b":                               "d-",
		"a/_b":                               "d-",
		"a.v42":                              "d-",
		"a/b.v1":                             "d-",
		"a.current":                          "d-",
		"a.v1.proposal":                      "d-",
		"sha256-abc":                         "d-",
		"x.sig":                              "d-",
		"x.att":                              "d-",
		"d-9bb62bad2e":                       "d-9bb62bad2e",
		"d-9bb62bad2e50b34a7b62ffeb0f5a29ef": "d-",
	} {
		d, err := artifacts.ParseDeviceID(id)
		if err != nil {
			t.Errorf("ParseDeviceID(%q) = %v", id, err)
		}
		got := d.Tag()
		if want == "d-" {
			if !regexp.MustCompile(`^d-[0-9a-f]{32}$`).MatchString(got) || got == id {
				t.Errorf("Tag(%q) = %q, want d- and a hash", id, got)
			}
		} else if got != want {
			t.Errorf("Tag(%q) = %q, want %q", id, got, want)
		}
	}
	if got := artifacts.HistoryTag("press-07", math.MaxUint64); got != "press-07.v18446744073709551615" {
		t.Errorf("HistoryTag = %q", got)
	}
	got := artifacts.ProposalTag(long, math.MaxUint64)
	if h, ok := artifacts.CutProposal(got); len(got) > 128 || !ok || h != artifacts.HistoryTag(long, math.MaxUint64) {
		t.Errorf("ProposalTag = %q, of %q, %t", got, h, ok)
	}
}

func TestDeploymentID(t *testing.T) {
	seen := map[string]string{}
	for _, device := range []artifacts.DeviceID{"a", "a-b", "a/b"} {
		for _, name := range []string{"b", "a", "b-c"} {
			id, what := artifacts.DeploymentID(device, name), string(device)+" "+name
			if id != artifacts.DeploymentID(device, name) || seen[id] != "" {
				t.Errorf("id of %s = %s, that of %s", what, id, seen[id])
			}
			seen[id] = what
		}
	}
	// Devices know deployments by their ids: another id is another deployment, with empty volumes.
	if got, want := artifacts.DeploymentID("press-07", "line-monitor"), "b7ff3fca-bc5c-5941-88ba-54143595392b"; got != want {
		t.Errorf("DeploymentID = %s, want %s", got, want)
	}
}

func TestParseDeviceIDRefuses(t *testing.T) {
	for _, id := range []string{"", "press 07", "/a", "a/", "a//b", "a/*", "ä", "a:b", "a\x00", "\xff", strings.Repeat("a", 513), ".", "..", "press-07/..", "press-07/.", "../press-07", "a/./b"} {
		if d, err := artifacts.ParseDeviceID(id); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseDeviceID(%q) = %q, %v, want fault.ErrInvalid", id, d, err)
		}
	}
	for _, id := range []string{"...", ".a", "a.", "a/..b", "~", "-"} {
		if _, err := artifacts.ParseDeviceID(id); err != nil {
			t.Errorf("ParseDeviceID(%q) = %v", id, err)
		}
	}
}

func TestCovers(t *testing.T) {
	for assigned, want := range map[string]bool{
		"": true, "gw": true, "gw/a": true, "gw/a/b": true, "gw/*": true, "gw2": false, "g": false, "gw-": false, "*": false,
	} {
		if got := artifacts.DeviceID("gw").Covers(assigned); got != want {
			t.Errorf("Covers(%q) = %v, want %v", assigned, got, want)
		}
	}
}

// FuzzDeviceTag: every id has a valid tag of its own, and its history fits into a tag too.
func FuzzDeviceTag(f *testing.F) {
	for _, s := range []string{"a", "a/b", "a__b", "a_/b", "a/_b", "a~b", ".a", "a.v1", "d-0123456789abcdef0123456789abcdef", "a.current"} {
		f.Add(s, "a__b")
	}
	tag := regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	f.Fuzz(func(t *testing.T, a, b string) {
		one, err := artifacts.ParseDeviceID(a)
		if err != nil {
			return
		}
		if !tag.MatchString(one.Tag()) || !tag.MatchString(artifacts.HistoryTag(one.Tag(), math.MaxUint64)) || !tag.MatchString(one.Tag()+".current") {
			t.Errorf("Tag(%q) = %q is no tag", a, one.Tag())
		}
		two, err := artifacts.ParseDeviceID(b)
		if err == nil && a != b && one.Tag() == two.Tag() {
			t.Errorf("%q and %q share the tag %q", a, b, one.Tag())
		}
		if err == nil && strings.HasPrefix(two.Tag(), one.Tag()+".v") && regexp.MustCompile(`^\.v[0-9]+$`).MatchString(two.Tag()[len(one.Tag()):]) {
			t.Errorf("the tag %q of %q is a history tag of %q", two.Tag(), b, a)
		}
	})
}
