package sign

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// PredicateCustom is the predicate of cosign's attestations that have no type of their own.
const PredicateCustom = "https://cosign.sigstore.dev/attestation/v1"

// predicateNames are the short names that cosign has for types of attestations.
func predicateNames() map[string]string {
	return map[string]string{
		"spdx":             "https://spdx.dev/Document",
		"spdxjson":         "https://spdx.dev/Document",
		"cyclonedx":        "https://cyclonedx.org/bom",
		"slsaprovenance":   "https://slsa.dev/provenance/v0.2",
		"slsaprovenance02": "https://slsa.dev/provenance/v0.2",
		"slsaprovenance1":  "https://slsa.dev/provenance/v1",
		"link":             "https://in-toto.io/Link/v1",
		"vuln":             "https://cosign.sigstore.dev/attestation/vuln/v1",
		"openvex":          "https://openvex.dev/ns",
		"custom":           PredicateCustom,
	}
}

// PredicateNames lists the short names of types of attestations, sorted.
func PredicateNames() []string { return slices.Sorted(maps.Keys(predicateNames())) }

// PredicateType is what cosign's --type means: a short name, or a URI as it is.
func PredicateType(s string) (string, error) {
	if full, ok := predicateNames()[s]; ok {
		return full, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Opaque == "" && u.Host == "" {
		err := fmt.Errorf("predicate type %.200q: %w: it is no URI and none of %s", s, fault.ErrInvalid, strings.Join(PredicateNames(), ", "))
		return "", fault.WithHint(err, "write the type as its specification does, for example https://slsa.dev/provenance/v1")
	}
	return s, nil
}
