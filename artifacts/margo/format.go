package margo

import (
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// devicePart is a part of a device id: what the specification's pattern allows but "." and "..", which URLs and paths resolve.
const devicePart = `([A-Za-z0-9._~-]*[A-Za-z0-9_~-][A-Za-z0-9._~-]*|\.{3,})`

// Formats that the specification gives as patterns.
var (
	uuidFormat        = strict.Expression(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	applicationFormat = strict.Short(`^[-a-z0-9]+$`, 200)
	deviceFormat      = strict.Expression("^" + devicePart + "(/" + devicePart + ")*$")
	assignmentFormat  = strict.Expression("^" + devicePart + "(/" + devicePart + `)*(/\*)?$`)
	componentFormat   = strict.Short(`^[a-z0-9-]+$`, 200)
	repositoryFormat  = strict.Expression(`^oci://[^\s]+$`)
	tagFormat         = strict.Short(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`, 128)
	revisionFormat    = strict.Expression(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
		`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
		`(_[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)
	timeoutFormat   = strict.Expression(`^(\d{1,6})m(\d{1,6})s$`)
	extensionFormat = strict.Expression(`^x-[a-z][a-z0-9-]*-extensions$`)
	digestFormat    = strict.Expression(`^sha256:[0-9a-f]{64}$`)
	variableFormat  = strict.Expression(`^[A-Za-z_][A-Za-z0-9_]*$`)
	memoryFormat    = strict.Expression(`^[0-9]{1,19}(Mi|Gi|Ki)$`)
	storageFormat   = strict.Expression(`^[0-9]{1,19}(Mi|Gi|Ki|Ti|Pi|Ei)$`)
	capacityFormat  = strict.Expression(`^([0-9]{1,19}(\.[0-9]{1,9})?) ?(Ki|Mi|Gi|Ti|Pi|Ei)$`)
)

// ValidDeviceID reports whether s is a device id as the specification writes them: "press-07", "gateway-1/press-07". No part is
// "." or "..".
func ValidDeviceID(s string) bool { return deviceFormat.MatchString(s) }

func uuid(n *strict.Node) string { return n.Matching(uuidFormat, "a UUID") }

// DigestForm says in errors what [ValidDigest] asks for.
const DigestForm = `a digest of the form "sha256:" and 64 lower-case hexadecimal digits`

// ReadDigest reads a digest for which [ValidDigest] is true.
func ReadDigest(n *strict.Node) digest.Digest {
	return digest.Digest(n.Matching(digestFormat, DigestForm))
}

// extensions reads the "x-<name>-extensions" members of an object. They are free in what they hold.
func extensions(n *strict.Node) Extensions {
	if n.Kind() != strict.Object {
		return nil
	}
	var out Extensions
	for _, m := range n.Members() {
		if !isExtension(m.Key()) {
			continue
		}
		if m.Kind() != strict.Object {
			m.Faultf("must be an object, is %s", m.Kind())
			continue
		}
		if out == nil {
			out = make(Extensions)
		}
		out[m.Key()], _ = m.Value().(map[string]any)
	}
	return out
}

func isExtension(key string) bool { return extensionFormat.MatchString(key) }

// timeout reads minutes and seconds, "8m30s".
func timeout(n *strict.Node) time.Duration {
	m := timeoutFormat.Regexp().FindStringSubmatch(n.Matching(timeoutFormat, `a time of the form "8m30s"`))
	if m == nil {
		return 0
	}
	minutes, _ := strconv.Atoi(m[1]) // six digits at most
	seconds, _ := strconv.Atoi(m[2])
	return time.Duration(minutes)*time.Minute + time.Duration(seconds)*time.Second
}

// parse reads a document in one of its forms.
func parse[T any](form func(file string, data []byte) (*strict.Node, error), read func(*strict.Node) (*T, error), file string, data []byte) (*T, error) {
	root, err := form(file, data)
	if err != nil {
		return nil, err
	}
	return read(root)
}

// unique records every node whose text another one before it had.
func unique(nodes []*strict.Node, what string) {
	lines := make(map[string]int, len(nodes))
	for _, n := range nodes {
		if n.Kind() != strict.String {
			continue
		}
		key := strings.ToLower(n.Text())
		if first, ok := lines[key]; ok {
			n.Faultf("the %s %q is there already, at line %d", what, n.Text(), first)
			continue
		}
		lines[key] = n.Line
	}
}

// ValidComponentName reports whether s can name a component: lower-case letters, digits, dashes.
func ValidComponentName(s string) bool { return componentFormat.MatchString(s) }

// ValidRevision reports whether s is a component's revision: SemVer 2.0 without a leading v, "_" in place of "+".
func ValidRevision(s string) bool { return revisionFormat.MatchString(s) }

// ValidDigest reports whether d has the one form that the specification allows: sha256 in lower-case hexadecimal.
func ValidDigest(d digest.Digest) bool { return digestFormat.MatchString(d.String()) }
