package registry

import (
	"fmt"
	"net"
	"strings"

	"github.com/opencontainers/go-digest"
	orasregistry "oras.land/oras-go/v2/registry"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Scheme is the kind of place that a reference names.
type Scheme string

// The two kinds of places.
const (
	SchemeOCI    Scheme = "oci"        // a repository of a registry
	SchemeLayout Scheme = "oci-layout" // a folder with an OCI image layout
)

// Limits of a reference.
const (
	maxReferenceLength  = 4096 // a path is the longest part
	maxRepositoryLength = 255  // limit of the distribution project for host and repository together
)

// dockerHub is the name of Docker's registry in references, dockerHubHost its host.
const (
	dockerHub     = "docker.io"
	dockerHubHost = "registry-1.docker.io"
)

// Reference names a repository of a registry or a layout on disk, or an artifact in it. With neither Tag nor
// Digest it names the place; with both, Digest decides and Tag is for display.
type Reference struct {
	Scheme     Scheme
	Registry   string // host[:port]; empty for a layout
	Repository string // path in the registry, or of the layout's folder
	Tag        string
	Digest     digest.Digest
}

// tagCharacters are allowed in a tag; '.' and '-' not first.
const tagCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

// ValidTag reports whether a registry takes this as a tag.
func ValidTag(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '.' && s[0] != '-' && strings.Trim(s, tagCharacters) == ""
}

// ParseReference reads "oci://host/path[:tag][@digest]", the same without a scheme, or "oci-layout:PATH[:TAG][@digest]".
// It never assumes a registry: for Docker's short names see [ParseImage].
func ParseReference(s string) (Reference, error) {
	switch {
	case s == "":
		return Reference{}, invalidReference(s, "it is empty")
	case len(s) > maxReferenceLength:
		return Reference{}, invalidReference(s[:64]+"…", fmt.Sprintf("it is longer than %d bytes", maxReferenceLength))
	case strings.HasPrefix(s, "oci-layout:"):
		return parseLayout(s)
	case strings.HasPrefix(s, "oci://"):
		return parseRepository(s, strings.TrimPrefix(s, "oci://"))
	case strings.Contains(s, "://"):
		return Reference{}, invalidReference(s, `its scheme is neither "oci://" nor "oci-layout:"`)
	}
	return parseRepository(s, s)
}

// ParseImage reads an image reference in the form of Compose files and Docker: "redis" is docker.io/library/redis:latest.
func ParseImage(s string) (Reference, error) {
	full := strings.TrimPrefix(s, "oci://")
	first, _, slash := strings.Cut(full, "/")
	switch {
	case strings.HasPrefix(s, "oci-layout:"):
		return ParseReference(s)
	case !slash && full != "":
		full = dockerHub + "/library/" + full
	case slash && !strings.ContainsAny(first, ".:") && first != "localhost":
		full = dockerHub + "/" + full
	case first == "index.docker.io" || first == dockerHubHost:
		full = dockerHub + strings.TrimPrefix(full, first)
	}
	if rest, ok := strings.CutPrefix(full, dockerHub+"/"); ok && rest != "" && !strings.Contains(rest, "/") {
		full = dockerHub + "/library/" + rest
	}
	if len(full) > maxReferenceLength {
		return Reference{}, invalidReference(s[:64]+"…", fmt.Sprintf("it is longer than %d bytes", maxReferenceLength))
	}
	r, err := parseRepository(s, full)
	if err != nil {
		return Reference{}, err
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

func invalidReference(s, why string) error {
	return fmt.Errorf("reference %q: %s: %w", s, why, fault.ErrInvalid)
}

func parseRepository(written, s string) (Reference, error) {
	host, rest, ok := strings.Cut(s, "/")
	if !ok || host == "" || rest == "" {
		return Reference{}, fault.WithHint(invalidReference(written, "it has no registry host and repository"),
			"write host/path:tag, for example registry.example.com/line/state:press-07")
	}
	r := Reference{Scheme: SchemeOCI, Registry: host}
	rest, d, hasDigest := strings.Cut(rest, "@")
	if hasDigest {
		r.Digest = digest.Digest(d)
		if err := checkDigest(r.Digest); err != nil {
			return Reference{}, invalidReference(written, "its digest is not sha256:<64 hex>")
		}
	}
	rest, tag, hasTag := strings.Cut(rest, ":")
	if hasTag {
		r.Tag = tag
		if !ValidTag(tag) {
			return Reference{}, invalidReference(written, "its tag is not 1 to 128 letters, digits, '_', '.' or '-'")
		}
	}
	r.Repository = rest
	oras := orasregistry.Reference{Registry: r.Registry, Repository: r.Repository}
	switch {
	case oras.ValidateRegistry() != nil || !validHost(r.Registry):
		return Reference{}, invalidReference(written, fmt.Sprintf("%q is no host or host:port", r.Registry))
	case len(r.Registry)+len(r.Repository) > maxRepositoryLength:
		return Reference{}, invalidReference(written, fmt.Sprintf("host and path are longer than %d bytes", maxRepositoryLength))
	case oras.ValidateRepository() != nil:
		return Reference{}, fault.WithHint(invalidReference(written, fmt.Sprintf("%q is no repository", r.Repository)),
			"a repository is lower-case letters, digits, '.', '_', '-', in parts separated by '/'")
	}
	return r, nil
}

// validHost is stricter than a URL: no user information, no brackets without an address, a numeric port.
func validHost(h string) bool {
	if strings.ContainsAny(h, "@?#%\\ ") {
		return false
	}
	name, port := h, ""
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		name, port = h[:i], h[i+1:]
		if port == "" || strings.Trim(port, "0123456789") != "" {
			return false
		}
	}
	if strings.HasPrefix(name, "[") {
		return strings.HasSuffix(name, "]") && net.ParseIP(name[1:len(name)-1]) != nil
	}
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == ""
}

// parseLayout reads the part after "oci-layout:". The last ":" separates a tag when no "/" follows it, so a folder whose
// last element has a colon cannot be written without a tag.
func parseLayout(s string) (Reference, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(s, "oci-layout:"), "//")
	r := Reference{Scheme: SchemeLayout}
	if i := strings.LastIndex(path, "@sha"); i >= 0 && !strings.Contains(path[i:], "/") {
		r.Digest = digest.Digest(path[i+1:])
		if err := checkDigest(r.Digest); err != nil {
			return Reference{}, invalidReference(s, "its digest is not sha256:<64 hex>")
		}
		path = path[:i]
	}
	if i := strings.LastIndexByte(path, ':'); i >= 0 && !strings.Contains(path[i:], "/") {
		r.Tag, path = path[i+1:], path[:i]
		if !ValidTag(r.Tag) {
			return Reference{}, invalidReference(s, "its tag is not 1 to 128 letters, digits, '_', '.' or '-'")
		}
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return Reference{}, fault.WithHint(invalidReference(s, "it has no path"), "write oci-layout:FOLDER:TAG")
	}
	r.Repository = path
	return r, nil
}

// checkDigest accepts the algorithms that registries use, in their canonical spelling.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil || (d.Algorithm() != digest.SHA256 && d.Algorithm() != digest.SHA512) {
		return fmt.Errorf("digest %q: %w", d, fault.ErrInvalid)
	}
	return nil
}

// Name is the place without tag and digest: "host/path", or the layout's path. Policies match on it.
func (r Reference) Name() string {
	if r.Scheme == SchemeLayout {
		return r.Repository
	}
	return r.Registry + "/" + r.Repository
}

// Place is the text form without tag and digest, which ParseReference reads.
func (r Reference) Place() string { return r.WithTag("").String() }

// Target is the digest of the reference if it has one, otherwise the tag, otherwise "".
func (r Reference) Target() string {
	if r.Digest != "" {
		return r.Digest.String()
	}
	return r.Tag
}

// WithTag is the same place with another tag and no digest.
func (r Reference) WithTag(tag string) Reference {
	r.Tag, r.Digest = tag, ""
	return r
}

// String is the text form, which ParseReference reads.
func (r Reference) String() string {
	var b strings.Builder
	if r.Scheme == SchemeLayout {
		b.WriteString("oci-layout:")
	}
	b.WriteString(r.Name())
	if r.Tag != "" {
		b.WriteString(":" + r.Tag)
	}
	if r.Digest != "" {
		b.WriteString("@" + r.Digest.String())
	}
	return b.String()
}
