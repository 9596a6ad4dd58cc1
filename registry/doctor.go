package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Answers of a Finding.
const (
	Yes = "yes"
	No  = "no"
)

// Finding is one ability of a registry, and how Longshore uses it.
type Finding struct {
	Ability string `json:"ability"`
	Answer  string `json:"answer"` // yes, no, or the unexpected response
	Means   string `json:"means"`
}

// Tags and type of the artifacts that Diagnose pushes.
const (
	doctorTag  = "longshore-doctor"
	doctorType = "application/vnd.longshore.doctor.v1+json"
)

// doctor examines a registry.
type doctor struct {
	p       *remotePlace
	a       *access
	made    []digest.Digest // pushed manifests, in the order of removal
	subject ocispec.Descriptor
	found   []Finding
}

// Diagnose tests the abilities of a registry: it pushes a small artifact, under tags that begin with
// "longshore-doctor", requests it in every way, and removes it if the registry permits that. now makes its content unique. An error
// means that a query failed or that the registry rejected the push; the findings until then are valid.
func (r *Repository) Diagnose(ctx context.Context, now time.Time) ([]Finding, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil, r.fail("examine", "", fmt.Errorf("a layout on disk has no registry: %w", fault.ErrUnsupported))
	}
	d := &doctor{p: p, a: p.upstream()}
	ctx = p.writing(ctx)
	steps := []func(context.Context, time.Time) error{d.list, d.push, d.referrers, d.conditional, d.ranges, d.large, d.immutable}
	for _, step := range steps {
		if err := step(ctx, now); err != nil {
			return d.found, errors.Join(r.fail("examine", "", err), d.remove(ctx))
		}
	}
	return d.found, r.fail("examine", "", d.remove(ctx))
}

func (d *doctor) tell(ability string, yes bool, ifYes, ifNo string) {
	f := Finding{ability, No, ifNo}
	if yes {
		f.Answer, f.Means = Yes, ifYes
	}
	d.found = append(d.found, f)
}

// refused separates errors about the content from errors of a failed query.
func refused(err error) bool { return err != nil && statusOf(err) >= 400 && statusOf(err) < 500 }

// list lists the tags.
func (d *doctor) list(ctx context.Context, _ time.Time) error {
	_, err := d.p.tags(ctx, "")
	if errors.Is(err, fault.ErrNotFound) {
		err = nil // nothing was pushed yet
	}
	if err != nil && !refused(err) {
		return err
	}
	d.tell("lists tags", err == nil, "state history and ranges of versions work", "name versions exactly; state history does not work")
	return nil
}

// manifest pushes a manifest of the doctor's type.
func (d *doctor) manifest(ctx context.Context, note string, subject *ocispec.Descriptor, tag string) (ocispec.Descriptor, http.Header, error) {
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: doctorType,
		Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{ocispec.DescriptorEmptyJSON}, Subject: subject,
		Annotations: map[string]string{"note": note},
	}
	m.Config.Data, m.Layers[0].Data = nil, nil
	data, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	desc := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	target := cmp.Or(tag, desc.Digest.String())
	header, err := d.p.putManifest(ctx, desc, data, target)
	if err == nil {
		d.made = append([]digest.Digest{desc.Digest}, d.made...) // referrers before their subject
	}
	return desc, header, err
}

func (d *doctor) push(ctx context.Context, now time.Time) error {
	empty := ocispec.DescriptorEmptyJSON
	if _, err := d.p.pushBlob(ctx, empty, empty.Data); err != nil {
		return err
	}
	var err error
	d.subject, _, err = d.manifest(ctx, now.UTC().Format(time.RFC3339Nano), nil, doctorTag)
	if err != nil && !refused(err) {
		return err
	}
	d.tell("takes artifacts (artifactType, empty config)", err == nil, "states, components and packages can be pushed",
		"nothing of Longshore's can be pushed here: the registry is older than OCI 1.1")
	return err
}

func (d *doctor) referrers(ctx context.Context, _ time.Time) error {
	made, header, err := d.manifest(ctx, "referrer", &d.subject, "")
	if err != nil {
		return err
	}
	list, err := d.p.referrersByAPI(ctx, d.a, d.subject.Digest)
	if err != nil && !errors.Is(err, errNoAPI) {
		return err
	}
	told := header.Get("OCI-Subject") == d.subject.Digest.String()
	d.tell("referrers API", err == nil && (told || lists(list, made.Digest)), "signatures are found by one request",
		"lists of signatures are kept under tags that begin with sha256-: exempt these from immutable tags and clean-up rules")
	return nil
}

func (d *doctor) conditional(ctx context.Context, _ time.Time) error {
	resp, err := d.a.call(ctx, http.MethodGet, "manifests/"+doctorTag, acceptManifests(), nil)
	if err != nil {
		return err
	}
	tag := resp.Header.Get("ETag")
	if err := resp.Body.Close(); err != nil {
		return err
	}
	header := acceptManifests()
	header.Set("If-None-Match", tag)
	if resp, err = d.a.call(ctx, http.MethodGet, "manifests/"+doctorTag, header, nil); err != nil {
		return err
	}
	status := resp.StatusCode
	d.tell("ETag and If-None-Match on manifests", tag != "" && status == http.StatusNotModified, "an unchanged poll has no body, by GET too",
		"devices poll by HEAD, which has no body either")
	return resp.Body.Close()
}

func (d *doctor) ranges(ctx context.Context, _ time.Time) error {
	empty := ocispec.DescriptorEmptyJSON
	resp, err := d.a.call(ctx, http.MethodGet, "blobs/"+empty.Digest.String(), http.Header{"Range": {"bytes=1-1"}}, nil)
	if err != nil && !refused(err) {
		return err
	}
	d.tell("ranges of blobs", err == nil && resp.StatusCode == http.StatusPartialContent, "a pull that was cut goes on where it stopped",
		"a blob whose pull was cut is fetched again from its beginning")
	if err != nil {
		return nil
	}
	return resp.Body.Close()
}

// large pushes a manifest nearly as large as Longshore's may be.
func (d *doctor) large(ctx context.Context, _ time.Time) error {
	_, _, err := d.manifest(ctx, strings.Repeat("x", MaxManifest-4096), nil, "")
	if err != nil && !refused(err) {
		return err
	}
	d.tell("manifests of "+strconv.Itoa(MaxManifest>>20)+" MiB", err == nil, "a device may have thousands of deployments",
		"keep the number of deployments of a device in the hundreds")
	return nil
}

// immutable tries to move a tag with the name of a history tag.
func (d *doctor) immutable(ctx context.Context, now time.Time) error {
	tag := doctorTag + ".v" + strconv.FormatInt(now.Unix(), 10)
	if _, _, err := d.manifest(ctx, "first "+tag, nil, tag); err != nil {
		return err
	}
	_, _, err := d.manifest(ctx, "second "+tag, nil, tag)
	if err != nil && !refused(err) {
		return err
	}
	d.tell("immutable history tags", err != nil, "no generation can be overwritten; the device's own tag has to stay movable",
		"two who publish at once are found out by looking before and after; a rule for tags like *.v[0-9]* would refuse it at once")
	return nil
}

// remove removes the pushed artifacts.
func (d *doctor) remove(ctx context.Context) error {
	if len(d.made) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	var failed error
	for _, m := range d.made {
		if err := d.p.remove(ctx, m.String()); failed == nil {
			failed = err
		}
	}
	if failed != nil && !refused(failed) && !errors.Is(failed, fault.ErrUnsupported) {
		return failed
	}
	d.tell("removes manifests", failed == nil, "what was pushed to find out has been removed",
		"tags that begin with "+doctorTag+" stay; history can be pruned by the registry's own means only")
	return nil
}
