package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
)

// place is a repository in memory.
type place struct {
	name      string
	manifests map[digest.Digest][]byte
	types     map[digest.Digest]string
	blobs     map[digest.Digest][]byte
	tags      map[string]digest.Digest
	fail      map[string]error // by call: "referrers", or a digest
}

func newPlace(name string) *place {
	return &place{
		name: name, manifests: map[digest.Digest][]byte{}, types: map[digest.Digest]string{}, blobs: map[digest.Digest][]byte{},
		tags: map[string]digest.Digest{}, fail: map[string]error{},
	}
}

func (p *place) Name() string { return p.name }

func (p *place) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	d := digest.Digest(tag)
	if d.Validate() != nil {
		var ok bool
		if d, ok = p.tags[tag]; !ok {
			return ocispec.Descriptor{}, fmt.Errorf("resolve %s: %w", tag, fault.ErrNotFound)
		}
	}
	desc, _, err := p.Manifest(ctx, d)
	return desc, err
}

func (p *place) Manifest(_ context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, ok := p.manifests[d]
	switch {
	case p.fail[d.String()] != nil:
		return ocispec.Descriptor{}, nil, p.fail[d.String()]
	case !ok:
		return ocispec.Descriptor{}, nil, fmt.Errorf("fetch %s: %w", d, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: p.types[d], Digest: d, Size: int64(len(data))}, data, nil
}

func (p *place) Blob(_ context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, ok := p.blobs[d.Digest]
	switch {
	case p.fail[d.Digest.String()] != nil:
		return nil, p.fail[d.Digest.String()]
	case !ok:
		return nil, fmt.Errorf("fetch %s: %w", d.Digest, fault.ErrNotFound)
	case int64(len(data)) > limit || d.Size > limit:
		return nil, fmt.Errorf("fetch %s: %w", d.Digest, fault.ErrTooLarge)
	}
	return data, nil
}

func (p *place) Referrers(_ context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if err := p.fail["referrers"]; err != nil {
		return nil, err
	}
	var out []ocispec.Descriptor
	for d, data := range p.manifests {
		var m ocispec.Manifest
		if json.Unmarshal(data, &m) == nil && m.Subject != nil && m.Subject.Digest == subject.Digest {
			out = append(out, ocispec.Descriptor{MediaType: p.types[d], Digest: d, Size: int64(len(data)), ArtifactType: m.ArtifactType})
		}
	}
	return out, nil
}

func (p *place) putBlob(mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	p.blobs[d.Digest] = data
	return d
}

func (p *place) put(tag, mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	p.manifests[d.Digest], p.types[d.Digest] = data, mediaType
	if tag != "" {
		p.tags[tag] = d.Digest
	}
	return d
}

func (p *place) putArtifact(tag string, a *artifacts.Artifact) ocispec.Descriptor {
	for _, b := range a.Blobs {
		p.blobs[b.Descriptor.Digest] = b.Data
	}
	return p.put(tag, a.Descriptor.MediaType, a.Manifest)
}

func (p *place) putManifest(t *testing.T, tag string, m ocispec.Manifest) ocispec.Descriptor {
	t.Helper()
	m.Versioned, m.MediaType = specs.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageManifest
	if m.Config.Digest == "" {
		m.Config = p.putBlob(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return p.put(tag, m.MediaType, data)
}

// bundleOf is a sigstore bundle that says something; nobody signed it.
func bundleOf(predicateType, hint string) []byte {
	statement := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q},"annotations":{"dev.longshore.signed":"2026-01-02T03:04:05Z","by":"anna","n":7}}],"predicateType":%q,"predicate":{"a":1}}`,
		strings.Repeat("ab", 32), predicateType)
	return bundleWith(statement, hint)
}

func bundleWith(statement, hint string) []byte {
	b, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": hint}, "tlogEntries": []any{map[string]any{"integratedTime": "1763654400"}}},
		"dsseEnvelope":         map[string]any{"payloadType": "application/vnd.in-toto+json", "payload": []byte(statement), "signatures": []any{}},
	})
	if err != nil {
		panic(err)
	}
	return b
}

// The text of a signature is not shown beside its statement, neither of itself nor in a list of referrers.
func TestInspectOfASignature(t *testing.T) {
	p := newPlace("registry.example/things")
	bundle := bundleOf(signing.PredicateSign, "")
	annotations := map[string]string{signing.AnnotationBundle: string(bundle), "a": "b"}
	d := p.putManifest(t, "signature", ocispec.Manifest{
		ArtifactType: signing.MediaTypeBundle, Layers: []ocispec.Descriptor{p.putBlob(signing.MediaTypeBundle, bundle)}, Annotations: annotations,
	})
	d.Annotations = annotations
	list, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	p.put("list", ocispec.MediaTypeImageIndex, list)
	want := map[string]string{"a": "b"}
	if i, err := audit.Inspect(t.Context(), p, "signature"); err != nil || !maps.Equal(i.Annotations, want) || len(i.Statements) != 1 {
		t.Errorf("signature = %+v, %v", i, err)
	}
	if i, err := audit.Inspect(t.Context(), p, "list"); err != nil || len(i.Manifests) != 1 || !maps.Equal(i.Manifests[0].Annotations, want) {
		t.Errorf("list = %+v, %v", i, err)
	}
}

// Things of others are shown, whatever they are, and what is broken about ours is told beside what can be shown.
func TestInspectOfOthers(t *testing.T) {
	p := newPlace("registry.example/things")
	p.putManifest(t, "chart", ocispec.Manifest{
		Config:      p.putBlob("application/vnd.cncf.helm.config.v1+json", []byte(`{"name":"x"}`)),
		Layers:      []ocispec.Descriptor{p.putBlob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", []byte("chart"))},
		Annotations: map[string]string{"a": "b"},
	})
	p.put("docker", "application/vnd.docker.distribution.manifest.list.v2+json", []byte(
		`{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.list.v2+json","manifests":[{"digest":"sha256:x","size":-5,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	p.putManifest(t, "broken", ocispec.Manifest{ArtifactType: artifacts.TypeState, Layers: []ocispec.Descriptor{p.putBlob("text/plain", []byte("x"))}})
	p.put("one", "application/vnd.docker.distribution.manifest.v1+json", []byte(`{"schemaVersion":1}`))
	p.put("noise", "text/html", []byte("<html>"))
	for _, tt := range []struct {
		tag, kind, artifactType, fault string
	}{
		{"chart", "", "application/vnd.cncf.helm.config.v1+json", ""},
		{"docker", "index", "", ""},
		{"broken", "state", artifacts.TypeState, "dev.longshore.device"},
	} {
		i, err := audit.Inspect(t.Context(), p, tt.tag)
		if err != nil {
			t.Errorf("%s: %v", tt.tag, err)
			continue
		}
		if string(i.Kind) != tt.kind || i.ArtifactType != tt.artifactType || strings.Contains(strings.Join(i.Faults, ""), tt.fault) == (tt.fault == "") && len(i.Faults) > 0 {
			t.Errorf("%s = %+v", tt.tag, i)
		}
	}
	if i, err := audit.Inspect(t.Context(), p, "docker"); err != nil || len(i.Manifests) != 1 || i.Manifests[0].Platform != "linux/arm/v7" {
		t.Errorf("docker = %+v, %v", i, err)
	}
	for tag, want := range map[string]error{"one": fault.ErrUnsupported, "noise": fault.ErrInvalid, "gone": fault.ErrNotFound} {
		if i, err := audit.Inspect(t.Context(), p, tag); !errors.Is(err, want) {
			t.Errorf("%s = %+v, %v, want %v", tag, i, err, want)
		}
	}
}

// What refers to an artifact is told by what it says: a signature, a statement of freshness, an attestation, a thing.
func TestReferrersAreTold(t *testing.T) {
	p := newPlace("registry.example/things")
	subject := p.putManifest(t, "app", ocispec.Manifest{ArtifactType: "application/x", Layers: []ocispec.Descriptor{p.putBlob("text/plain", []byte("app"))}})
	add := func(artifactType, layerType string, data []byte) {
		p.putManifest(t, "", ocispec.Manifest{ArtifactType: artifactType, Subject: &subject, Layers: []ocispec.Descriptor{p.putBlob(layerType, data)}})
	}
	const bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	add(bundle, bundle, bundleOf("https://sigstore.dev/cosign/sign/v1", "ZrU2hhdrp8rw4Wkx+lO3EdbVVbmLR4qUPbnKhhc1AKc="))
	add(bundle, bundle, bundleOf(signing.PredicateFreshness, ""))
	add("application/vnd.oci.empty.v1+json", bundle, bundleOf("https://spdx.dev/Document", "no base64!"))
	add(bundle, bundle, []byte("noise"))
	add("application/spdx+json", "application/spdx+json", []byte("{}"))
	p.putManifest(t, "", ocispec.Manifest{ArtifactType: "application/other", Subject: &subject})
	i, err := audit.Inspect(t.Context(), p, "app")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, r := range i.Referrers {
		switch {
		case r.Fault != "":
			kinds["fault"]++
		case len(r.Statements) == 0:
			kinds["thing"]++
		}
		for _, s := range r.Statements {
			kinds[s.Kind]++
			if s.Time != "2026-01-02T03:04:05Z" || s.Annotations["by"] != "anna" || len(s.Annotations) != 1 || s.Logged != "2025-11-20T16:00:00Z" {
				t.Errorf("statement = %+v", s)
			}
			if (s.Kind == "signature") != (s.Key != "") {
				t.Errorf("key of a %s = %q", s.Kind, s.Key)
			}
		}
	}
	if want := (map[string]int{"signature": 1, "freshness": 1, "attestation": 1, "fault": 1, "thing": 2}); fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("referrers are %v, want %v", kinds, want)
	}
	p.fail["referrers"] = fault.ErrTemporary
	if i, err := audit.Inspect(t.Context(), p, "app"); err != nil || i.Referrers != nil || len(i.Faults) != 1 {
		t.Errorf("without a list of referrers: %+v, %v", i, err)
	}
}

// A trust policy that travels is shown with its text.
func TestInspectTrust(t *testing.T) {
	p := newPlace("registry.example/trust")
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 7, Policy: []byte("rules: []\n"), TrustedRoot: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	p.putArtifact("v7", a)
	i, err := audit.Inspect(t.Context(), p, "v7")
	if err != nil || i.Kind != artifacts.KindTrust || i.Trust == nil || i.Trust.Version != 7 || i.Trust.TrustedRoot != 2 || i.Document != "rules: []\n" || len(i.Faults) > 0 {
		t.Errorf("Inspect = %+v, %v", i, err)
	}
}

// However many things refer to an artifact, a few are opened and the rest is counted.
func TestManyReferrers(t *testing.T) {
	p := newPlace("registry.example/things")
	subject := p.putManifest(t, "app", ocispec.Manifest{ArtifactType: "application/x"})
	for n := range 1000 {
		p.putManifest(t, "", ocispec.Manifest{ArtifactType: "application/x", Subject: &subject, Annotations: map[string]string{"n": fmt.Sprint(n)}})
	}
	i, err := audit.Inspect(t.Context(), p, "app")
	if err != nil || len(i.Referrers) != 64 || i.Unlisted != 936 {
		t.Errorf("%d shown, %d more, %v", len(i.Referrers), i.Unlisted, err)
	}
}

// What is read of many large statements is bounded in all, and what is not read is told.
func TestLargeStatements(t *testing.T) {
	p := newPlace("registry.example/things")
	subject := p.putManifest(t, "app", ocispec.Manifest{ArtifactType: "application/x"})
	const bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	large := p.putBlob(bundle, bundleWith(`{"predicateType":"x","predicate":"`+strings.Repeat("x", 2<<20)+`"}`, "aGludA=="))
	for n := range 40 {
		p.putManifest(t, "", ocispec.Manifest{ArtifactType: bundle, Subject: &subject, Annotations: map[string]string{"n": fmt.Sprint(n)}, Layers: []ocispec.Descriptor{large, large}})
	}
	i, err := audit.Inspect(t.Context(), p, "app")
	if err != nil {
		t.Fatal(err)
	}
	read, unread := 0, 0
	for _, r := range i.Referrers {
		read += len(r.Statements)
		unread += strings.Count(r.Fault, "more than is read")
	}
	if read*int(large.Size) > 64<<20 || read == 0 || read+unread != 80 {
		t.Errorf("%d statements of %d bytes are read, and %d are not", read, large.Size, unread)
	}
}

// Of more claims than are shown the same ones are shown each time, and the time is among them.
func TestTooManyClaims(t *testing.T) {
	claims := map[string]any{"dev.longshore.signed": "2026-01-02T03:04:05Z", "number": 7}
	for n := range 100 {
		claims[fmt.Sprintf("claim-%02d", n)] = "x"
	}
	all, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	data := bundleWith(`{"subject":[{"annotations":`+string(all)+`}]}`, "aGludA==")
	for range 20 {
		s, err := audit.ReadBundle(data)
		if err != nil {
			t.Fatal(err)
		}
		if s.Time != "2026-01-02T03:04:05Z" || len(s.Annotations) != 64 || s.Annotations["claim-00"] == "" || s.Annotations["claim-63"] == "" {
			t.Fatalf("time %q, %d claims, want the time and the first 64 claims by name: %v", s.Time, len(s.Annotations), s.Annotations)
		}
	}
}

// FuzzReadBundle: whatever a bundle is, it is told or refused.
func FuzzReadBundle(f *testing.F) {
	f.Add(bundleOf("https://sigstore.dev/cosign/sign/v1", "aGludA=="))
	f.Add([]byte(`{"verificationMaterial":{"certificate":{"rawBytes":"MAA="}},"messageSignature":{}}`))
	f.Add([]byte(`{"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := audit.ReadBundle(data)
		if (s == nil) == (err == nil) {
			t.Errorf("ReadBundle = %v, %v", s, err)
		}
		if s != nil && s.Kind == "" {
			t.Error("a statement of no kind")
		}
	})
}

func manifestOf(artifactType string) ocispec.Manifest {
	return ocispec.Manifest{ArtifactType: artifactType}
}
