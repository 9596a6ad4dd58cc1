package registry_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// answers are the findings of a registry by their first word.
func answers(found []registry.Finding) map[string]string {
	out := map[string]string{}
	for _, f := range found {
		word, _, _ := strings.Cut(f.Ability, " ")
		out[word] = f.Answer
	}
	return out
}

func TestDiagnose(t *testing.T) {
	now := time.Unix(1763654400, 0)
	all := func(referrers, etag, ranges, removes string) map[string]string {
		return map[string]string{
			"lists": "yes", "takes": "yes", "referrers": referrers, "ETag": etag, "ranges": ranges, "manifests": "yes", "immutable": "no", "removes": removes,
		}
	}
	for kind, want := range map[testenv.Kind]map[string]string{
		testenv.Distribution:      all("no", "yes", "yes", "yes"),
		testenv.DistributionToken: all("no", "yes", "yes", "yes"),
		testenv.Referrers:         all("yes", "no", "yes", "yes"),
		testenv.Lax:               all("no", "no", "yes", "yes"),
	} {
		t.Run(string(kind), func(t *testing.T) {
			server := testenv.Registry(t, kind)
			repo := openName(t, clientFor(t, server), server.Reference("plant/doctor"))
			for range 2 {
				found, err := repo.Diagnose(t.Context(), now)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, answers(found)); diff != "" {
					t.Errorf("findings (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestDiagnoseRefusals(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	repo := openName(t, clientFor(t, server), server.Reference("plant/doctor"))
	server.Faults.Add(immutable(&sync.Mutex{}))
	server.Faults.Add(testenv.Rule{Method: http.MethodDelete, Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
	found, err := repo.Diagnose(t.Context(), time.Unix(1, 0))
	if got := answers(found); err != nil || got["immutable"] != "yes" || got["removes"] != "no" {
		t.Errorf("%v, %v, want immutable tags and no removal", got, err)
	}
	server.Faults.Clear()
	server.Faults.Add(testenv.Rule{Method: http.MethodPost, Effect: testenv.Status(http.StatusForbidden, 0)})
	other := openName(t, clientFor(t, server), server.Reference("plant/other"))
	if found, err := other.Diagnose(t.Context(), time.Unix(1, 0)); !errors.Is(err, fault.ErrDenied) || answers(found)["lists"] != "yes" {
		t.Errorf("%v, %v, want what could be seen, and that pushing is denied", found, err)
	}
	server.Down()
	if _, err := other.Diagnose(t.Context(), time.Unix(1, 0)); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("away: %v", err)
	}
	layout := openName(t, newClient(t, registry.Options{}), "oci-layout:"+t.TempDir())
	if _, err := layout.Diagnose(t.Context(), time.Unix(1, 0)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a layout: %v", err)
	}
}
