package conform

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	manifestPath  = "/api/v1/deployments"
	manifestMedia = "application/vnd.margo.manifest.v1+json"
	bundleMedia   = "application/vnd.margo.bundle.v1+tar+gzip"
	yamlMedia     = "application/yaml"
	immutable     = "private, max-age=31536000, immutable"
	otherETag     = `"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
	pollInterval  = 200 * time.Millisecond
	maxDocuments  = 64 << 20 // bytes in a bundle
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// manifest is a State Manifest as it was served.
type manifest struct {
	*answer
	members     map[string]json.RawMessage
	version     string
	bundle      *bundleRef
	deployments []deploymentRef
}

type bundleRef struct {
	MediaType, Digest, URL string
	SizeBytes              *json.Number
}

type deploymentRef struct {
	DeploymentID string `json:"deploymentId"`
	Digest, URL  string
	SizeBytes    *json.Number
}

// manifest fetches the State Manifest of a client.
func (p *peer) manifest(ctx context.Context) (*manifest, error) {
	a, err := p.get(ctx, manifestPath)
	if err != nil {
		return nil, err
	}
	if err := a.want(200); err != nil {
		return nil, err
	}
	m := &manifest{answer: a}
	var number json.Number
	err = json.Unmarshal(a.body, &m.members)
	for name, into := range map[string]any{"manifestVersion": &number, "bundle": &m.bundle, "deployments": &m.deployments} {
		if raw, ok := m.members[name]; ok && err == nil {
			err = json.Unmarshal(raw, into)
		}
	}
	m.version = string(bytes.TrimSpace(m.members["manifestVersion"]))
	if err != nil {
		return nil, fmt.Errorf("%s: no State Manifest: %w", a, err)
	}
	return m, nil
}

// number is the manifestVersion.
func (m *manifest) number() (uint64, error) {
	n, err := strconv.ParseUint(m.version, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("manifestVersion is %s, want an integer from 1 to 2^64-1", m.version)
	}
	return n, nil
}

// full fetches the manifest of the client under test, which has at least one deployment.
func (s *session) full(ctx context.Context) (*manifest, error) {
	m, err := s.client.manifest(ctx)
	if err != nil || len(m.deployments) > 0 {
		return m, err
	}
	if s.Assign == nil {
		return nil, skip("deployments that are assigned to the client")
	}
	return s.assigned(ctx, 2)
}

// AssignBy is an Assign of a [Target] by a command of sh, with DEVICE and COUNT in its environment. What it prints goes to out.
func AssignBy(command string, out io.Writer) func(context.Context, string, int) error {
	return func(ctx context.Context, device string, deployments int) error {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = append(os.Environ(), "DEVICE="+device, "COUNT="+strconv.Itoa(deployments))
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
}

// assigned assigns a number of deployments and waits until another manifest is served.
func (s *session) assigned(ctx context.Context, deployments int) (*manifest, error) {
	if s.Assign == nil {
		return nil, skip("a way to assign deployments (--assign)")
	}
	before, err := s.client.manifest(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Assign(ctx, s.client.device, deployments); err != nil {
		return nil, fmt.Errorf("assign: %w", err)
	}
	for until := time.Now().Add(s.Patience); ; {
		m, err := s.client.manifest(ctx)
		if err != nil || !bytes.Equal(m.body, before.body) {
			return m, err
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("%d deployments were assigned, and the manifest of before is served %v later", deployments, s.Patience)
		}
		if err := delay.For(ctx, pollInterval); err != nil {
			return nil, err
		}
	}
}

// onManifest makes a case of a check of a manifest with deployments.
func onManifest(id, rules, title string, check func(context.Context, *session, *manifest) error) Case {
	return Case{id, strings.Fields(rules), title, func(ctx context.Context, s *session) error {
		m, err := s.full(ctx)
		if err != nil {
			return err
		}
		return check(ctx, s, m)
	}}
}

func manifestCases() []Case {
	return []Case{
		onManifest("manifest.type", "3.1.1", "Content-Type", func(_ context.Context, _ *session, m *manifest) error {
			return m.has("Content-Type", manifestMedia)
		}),
		onManifest("manifest.version", "3.1.2", "manifestVersion is an integer", func(_ context.Context, _ *session, m *manifest) error {
			_, err := m.number()
			return err
		}),
		{"manifest.first", []string{"3.1.3", "3.1.6"}, "a client without deployments gets an empty manifest of version 1", firstManifest},
		{"manifest.rises", []string{"3.1.4"}, "other content has a higher version", rises},
		{"manifest.empty", []string{"3.1.5", "3.1.6"}, "without deployments, bundle is null", emptyManifest},
		onManifest("manifest.members", "3.1.5 3.1.6 3.1.7 3.1.10 3.1.14", "members of the manifest, of bundle and of deployments", members),
		onManifest("manifest.urls", "3.1.9 3.1.13", "URLs have the digest", urls),
		onManifest("manifest.digests", "3.2.1", "digests are sha256: and 64 lower-case digits", digests),
		onManifest("manifest.etag", "3.2.5", "ETag is strong and the digest of the body", func(_ context.Context, _ *session, m *manifest) error {
			return m.has("ETag", `"`+digestOf(m.body)+`"`)
		}),
		onManifest("manifest.cache", "3.5.1", "Cache-Control: private, not immutable", func(_ context.Context, _ *session, m *manifest) error {
			return m.has("Cache-Control", "private")
		}),
		onManifest("manifest.unchanged", "3.5.2", "If-None-Match is answered 304", func(ctx context.Context, s *session, m *manifest) error {
			return s.client.unchanged(ctx, manifestPath, m.header.Get("ETag"))
		}),
		onManifest("manifest.changed", "3.5.3", "If-None-Match with another ETag is answered 200", func(ctx context.Context, s *session, m *manifest) error {
			a, err := s.client.get(ctx, manifestPath, "If-None-Match", otherETag)
			if err == nil {
				err = a.want(200)
			}
			if err == nil && !bytes.Equal(a.body, m.body) {
				err = fmt.Errorf("%s: want the manifest as without If-None-Match", a)
			}
			return err
		}),
		onManifest("manifest.compressed", "3.2.2 3.5.6", "a compressed answer has the same bytes, and Vary", compressed),
		onManifest("manifest.accept", "3.5.7 3.5.8", "content negotiation", accept),
		onManifest("content.bundle", "3.1.8 3.2.2 3.5.4 3.5.9", "the bundle has its digest, type and Cache-Control", func(ctx context.Context, s *session, m *manifest) error {
			return s.client.content(ctx, m.bundle.URL, m.bundle.Digest, bundleMedia)
		}),
		onManifest("content.deployment", "3.1.12 3.2.2 3.5.5 3.5.9", "a deployment has its digest, type and Cache-Control", func(ctx context.Context, s *session, m *manifest) error {
			var all []error
			for _, d := range m.deployments {
				all = append(all, s.client.content(ctx, d.URL, d.Digest, yamlMedia))
			}
			return errors.Join(all...)
		}),
		onManifest("content.unchanged", "3.5.10", "If-None-Match with the digest is answered 304", func(ctx context.Context, s *session, m *manifest) error {
			return errors.Join(s.client.unchanged(ctx, m.bundle.URL, `"`+m.bundle.Digest+`"`),
				s.client.unchanged(ctx, m.deployments[0].URL, `"`+m.deployments[0].Digest+`"`))
		}),
		onManifest("content.id", "3.1.11", "deploymentId is the id in the document", ids),
		onManifest("content.archive", "3.3.1 3.3.2 3.3.3", "the bundle has exactly the documents", archive),
	}
}

func firstManifest(ctx context.Context, s *session) error {
	p, err := s.fresh(ctx)
	if err != nil {
		return err
	}
	m, err := p.manifest(ctx)
	if err != nil {
		return err
	}
	if m.version != "1" || m.bundle != nil || string(m.members["bundle"]) != "null" || string(m.members["deployments"]) != "[]" {
		return fmt.Errorf("%s: want manifestVersion 1, bundle null and deployments []", m)
	}
	return nil
}

func rises(ctx context.Context, s *session) error {
	before, err := s.client.manifest(ctx)
	if err != nil {
		return err
	}
	for _, deployments := range []int{1, 2} {
		m, err := s.assigned(ctx, deployments)
		if err != nil {
			return err
		}
		was, err := before.number()
		is, err2 := m.number()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if is <= was || len(m.deployments) != deployments {
			return fmt.Errorf("version %d with %d deployments follows version %d, want a higher one with %d", is, len(m.deployments), was, deployments)
		}
		before = m
	}
	return nil
}

func emptyManifest(ctx context.Context, s *session) error {
	m, err := s.assigned(ctx, 0)
	if err != nil {
		return err
	}
	_, backErr := s.assigned(ctx, 2) // the cases that follow need some
	if raw, ok := m.members["bundle"]; !ok || string(raw) != "null" || string(m.members["deployments"]) != "[]" {
		return fmt.Errorf("%s: want bundle null and deployments []", m)
	}
	return backErr
}

func members(_ context.Context, _ *session, m *manifest) error {
	var all []error
	if m.bundle == nil {
		return fmt.Errorf("%s: bundle is null beside deployments", m)
	}
	if m.bundle.MediaType != bundleMedia {
		all = append(all, fmt.Errorf("bundle.mediaType is %q", m.bundle.MediaType))
	}
	sizes := []*json.Number{m.bundle.SizeBytes}
	for i, d := range m.deployments {
		if d.DeploymentID == "" || d.Digest == "" || d.URL == "" {
			all = append(all, fmt.Errorf("deployments[%d] lacks deploymentId, digest or url", i))
		}
		sizes = append(sizes, d.SizeBytes)
	}
	for _, n := range sizes {
		if n == nil {
			continue
		}
		if _, err := strconv.ParseUint(n.String(), 10, 64); err != nil {
			all = append(all, fmt.Errorf("sizeBytes is %s", n))
		}
	}
	return errors.Join(all...)
}

func urls(_ context.Context, _ *session, m *manifest) error {
	var all []error
	if want := "/api/v1/bundles/" + m.bundle.Digest; m.bundle.URL != want {
		all = append(all, fmt.Errorf("bundle.url is %q, want %q", m.bundle.URL, want))
	}
	for _, d := range m.deployments {
		if want := manifestPath + "/" + d.DeploymentID + "/" + d.Digest; d.URL != want {
			all = append(all, fmt.Errorf("url is %q, want %q", d.URL, want))
		}
	}
	return errors.Join(all...)
}

func digests(_ context.Context, _ *session, m *manifest) error {
	for _, d := range append(m.deployments, deploymentRef{Digest: m.bundle.Digest}) {
		if !digestForm.MatchString(d.Digest) {
			return fmt.Errorf("digest %q", d.Digest)
		}
	}
	return nil
}

// unchanged sends an ETag and wants 304.
func (p *peer) unchanged(ctx context.Context, path, etag string) error {
	a, err := p.get(ctx, path, "If-None-Match", etag)
	if err == nil {
		err = a.want(304)
	}
	if err == nil && len(a.body) > 0 {
		err = fmt.Errorf("%s: a 304 has no body", a)
	}
	return err
}

// plain undoes the Content-Encoding.
func (a *answer) plain() ([]byte, error) {
	switch encoding := a.header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return a.body, nil
	case "gzip":
		z, err := gzip.NewReader(bytes.NewReader(a.body))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.request, err)
		}
		return io.ReadAll(io.LimitReader(z, maxBody))
	default:
		return nil, fmt.Errorf("%s: Content-Encoding %s was not asked for", a.request, encoding)
	}
}

func compressed(ctx context.Context, s *session, m *manifest) error {
	for path, digest := range map[string]string{manifestPath: digestOf(m.body), m.deployments[0].URL: m.deployments[0].Digest, m.bundle.URL: m.bundle.Digest} {
		a, err := s.client.get(ctx, path, "Accept-Encoding", "gzip")
		if err != nil {
			return err
		}
		data, err := a.plain()
		if err != nil {
			return err
		}
		if digestOf(data) != digest {
			return fmt.Errorf("%s with Accept-Encoding: gzip has digest %s, want %s", a.request, digestOf(data), digest)
		}
		vary := strings.ToLower(strings.Join(a.header.Values("Vary"), ","))
		if a.header.Get("Content-Encoding") != "" && !strings.Contains(vary, "accept-encoding") {
			return fmt.Errorf("%s is compressed and has no Vary: Accept-Encoding", a.request)
		}
	}
	return nil
}

func accept(ctx context.Context, s *session, _ *manifest) error {
	var all []error
	for _, value := range []string{manifestMedia, "*/*", "application/*", "text/html, " + manifestMedia + ";q=0.5"} {
		a, err := s.client.get(ctx, manifestPath, "Accept", value)
		if err == nil {
			err = errors.Join(a.want(200), a.has("Content-Type", manifestMedia))
		}
		all = append(all, err)
	}
	for _, value := range []string{"application/json", "text/html", "application/vnd.margo.manifest.v2+json"} {
		err := s.client.rejects(ctx, "GET", manifestPath, nil, 406, "server-cannot-generate-response", "Accept", value)
		if err != nil {
			err = fmt.Errorf("with Accept: %s: %w", value, err)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// content fetches what has a digest in its URL.
func (p *peer) content(ctx context.Context, path, digest, media string) error {
	a, err := p.get(ctx, path)
	if err != nil {
		return err
	}
	if err := a.want(200); err != nil {
		return err
	}
	err = errors.Join(a.has("Content-Type", media), a.has("Cache-Control", immutable), a.has("ETag", `"`+digest+`"`))
	if got := digestOf(a.body); got != digest {
		err = errors.Join(err, fmt.Errorf("%s has digest %s", a.request, got))
	}
	return err
}

func ids(ctx context.Context, s *session, m *manifest) error {
	for _, d := range m.deployments {
		a, err := s.client.get(ctx, d.URL)
		if err != nil {
			return err
		}
		var doc struct {
			ID string `yaml:"id"`
		}
		if err := yaml.Unmarshal(a.body, &doc); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		if doc.ID != d.DeploymentID {
			return fmt.Errorf("%s has id %q", a.request, doc.ID)
		}
	}
	return nil
}

func archive(ctx context.Context, s *session, m *manifest) error {
	a, err := s.client.get(ctx, m.bundle.URL)
	if err != nil {
		return err
	}
	found, err := documents(a.body)
	if err != nil {
		return fmt.Errorf("%s: %w", a.request, err)
	}
	want := map[string]int{}
	for _, d := range m.deployments {
		want[d.Digest]++
	}
	if !maps.Equal(found, want) {
		return fmt.Errorf("the bundle has documents of digests %v, the manifest names %v", slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(want)))
	}
	return nil
}

// documents counts the files of a bundle by digest.
func documents(data []byte) (map[string]int, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	files := tar.NewReader(io.LimitReader(z, maxDocuments))
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(h.Name, "./")
		switch {
		case h.Typeflag == tar.TypeDir && name == "":
			continue
		case h.Typeflag != tar.TypeReg || strings.Contains(name, "/"):
			return nil, fmt.Errorf("%s is no file in the root of the archive", h.Name)
		}
		b, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		out[digestOf(b)]++
	}
}
