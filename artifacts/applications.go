package artifacts

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// AnnotationApplications tells from which application packages a state was made. Devices do not look at it.
const AnnotationApplications = "dev.longshore.applications"

// ApplicationVersion is an exact version of an application package.
type ApplicationVersion struct {
	Repository string // "host/path"; "": the publisher did not say
	Version    string
	Digest     digest.Digest
}

var applicationVersion = strict.Expression(`^([a-z0-9][a-z0-9-]*)=` +
	`(?:((?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+):)?` +
	`([A-Za-z0-9_][A-Za-z0-9._-]{0,127})@(sha256:[0-9a-f]{64})$`)

// applicationsText writes versions by name: "line=host/apps/line:1.4.0@sha256:…,vision=0.9.2@sha256:…".
func applicationsText(all map[string]ApplicationVersion) (string, error) {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := name + "="
		if all[name].Repository != "" {
			one += all[name].Repository + ":"
		}
		one += all[name].Version + "@" + all[name].Digest.String()
		if !applicationVersion.MatchString(one) {
			return "", fmt.Errorf("application %q: %w: not a name with a repository, a version and a digest", one, fault.ErrInvalid)
		}
		out = append(out, one)
	}
	return strings.Join(out, ","), nil
}

// readApplications reads what applicationsText writes. What cannot be read is left out: nothing that runs depends on it.
func readApplications(text string) map[string]ApplicationVersion {
	out := map[string]ApplicationVersion{}
	for one := range strings.SplitSeq(text, ",") {
		if m := applicationVersion.Regexp().FindStringSubmatch(one); m != nil {
			out[m[1]] = ApplicationVersion{m[2], m[3], digest.Digest(m[4])}
		}
	}
	return out
}
