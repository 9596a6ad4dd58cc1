package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/signing/audit"
)

var inspectCommand = command{
	name: "inspect", args: "HOST/PATH[:TAG|@DIGEST]|oci-layout:PATH[:TAG]", min: 1, max: 1,
	usage: "show the type and content of an artifact",
	about: "Shows type, digest, sizes, annotations and layers of any artifact, its claimed signers, and the content of those that " +
		"Longshore knows: states, bundles, components with their locks, application packages, images, signatures. Digests and " +
		"documents are checked, signatures are not: use longshore verify.",
	examples: []string{"harbor.acme.example/plant/state:press-07", "-o json oci-layout:stick:press-07.v41"},
	flags:    registryFlags,
	run:      (*call).inspect,
}

type inspectResult struct {
	Reference string `json:"reference"`
	*audit.Inspection
}

func (c *call) inspect(args []string) error {
	repo, target, err := c.openTarget(args[0])
	if err != nil {
		return err
	}
	i, err := audit.Inspect(c.Context, repo, target)
	if err != nil {
		return err
	}
	return c.show(inspectResult{repo.Reference().String(), i})
}

func (r inspectResult) quietText() string { return r.Digest.String() }

func (r inspectResult) text(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n", cmp.Or(string(r.Kind), "artifact"), r.Reference)
	var top branch
	top.add("digest       %s", r.Digest)
	if r.ArtifactType != "" {
		top.add("type         %s", oneLine(r.ArtifactType))
	}
	top.add("media type   %s", oneLine(cmp.Or(r.MediaType, "unknown")))
	if r.Manifests == nil {
		top.add("size         %s, manifest %s", printable.Bytes(r.ContentSize), printable.Bytes(r.Size))
	} else {
		top.add("size         %s of manifest", printable.Bytes(r.Size))
	}
	if r.Subject != nil {
		top.add("refers to    %s", r.Subject.Digest)
	}
	r.contents(&top)
	texts(&top, "annotations", r.Annotations)
	pieces(&top, "layers", r.Layers)
	pieces(&top, "manifests", r.Manifests)
	r.referrers(&top)
	for _, f := range r.Faults {
		top.add("! %s", strings.ReplaceAll(f, "\n", "; "))
	}
	top.write(w, "")
}

// texts shows names and values.
func texts(b *branch, name string, all map[string]string) {
	if len(all) == 0 {
		return
	}
	at := b.add("%s", name)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		at.add("%s: %s", oneLine(k), oneLine(all[k]))
	}
}

const maxShownText = 200 // characters of one foreign text

// oneLine shows text of others in one line, without control characters.
func oneLine(s string) string {
	cut := ""
	if r := []rune(s); len(r) > maxShownText {
		s, cut = string(r[:maxShownText]), "…"
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		s = strconv.Quote(s)
	}
	return s + cut
}

func pieces(b *branch, name string, all []audit.Blob) {
	if len(all) == 0 {
		return
	}
	at := b.add("%s", name)
	for _, l := range all {
		line := fmt.Sprintf("%s  %10s  %s", printable.Digest(l.Digest), printable.Bytes(l.Size), oneLine(cmp.Or(l.Platform, l.ArtifactType, l.MediaType, "no type")))
		if title := l.Annotations[ocispec.AnnotationTitle]; title != "" {
			line += "  " + oneLine(title)
		}
		at.add("%s", line)
	}
}

// contents shows the content of a known artifact.
func (r inspectResult) contents(top *branch) {
	if s := r.State; s != nil {
		at := top.add("device       %s, generation %d", s.Device, s.Generation)
		at.some("after %s", s.Previous.String())
		at.some("expires %s", s.Expires)
		for _, w := range s.Windows.Strings() {
			at.add("window for changes %s", w)
		}
		if len(r.Deployments) == 0 && len(r.Faults) == 0 {
			top.add("nothing to run")
		}
	}
	for _, d := range r.Deployments {
		at := top.add("deployment   %s  %s", d.Name, printable.Digest(d.Digest))
		for _, c := range d.Components {
			pin := "not pinned: the tag decides"
			if c.Digest != "" {
				pin = printable.Digest(c.Digest)
			}
			at.add("component %s  %s:%s  %s", c.Name, c.Repository, c.Version, pin)
		}
	}
	if c := r.Component; c != nil {
		at := top.add("archive      %s/, %s", c.Root, printable.Counted(len(c.Files), "file"))
		for _, f := range c.Files {
			at.add("%s  %s", oneLine(f.Name), printable.Bytes(f.Size))
		}
		locked := top.add("lock         %s", printable.Counted(len(c.Images), "image"))
		if !c.Locked {
			locked.line = "lock         none: tags decide which images run"
		}
		for _, i := range c.Images {
			image := locked.add("%s  %s", i.Reference, printable.Digest(i.Digest))
			for _, p := range i.Platforms {
				image.add("%s  %s  %s", p.Platform, printable.Bytes(p.Size), printable.Digest(p.Digest))
			}
		}
	}
	if d := r.Package; d != nil {
		at := top.add("application  %s %s (%s)", oneLine(d.Name), oneLine(d.Version), d.ID)
		at.add("profiles   %s", strings.Join(d.Profiles, ", "))
		at.some("resources  %s", strings.Join(d.Resources, ", "))
	}
	if i := r.Image; i != nil {
		at := top.add("image        %s", oneLine(cmp.Or(i.Platform, "unknown platform")))
		at.some("created  %s", i.Created)
		if len(i.Command) > 0 {
			at.add("runs     %s", oneLine(strings.Join(i.Command, " ")))
		}
		if i.User != "" {
			at.add("as       %s", oneLine(i.User))
		}
		texts(at, "labels", i.Labels)
	}
	for _, s := range r.Statements {
		top.addStatement(s)
	}
	if t := r.Trust; t != nil {
		at := top.add("policy       version %d", t.Version)
		at.some("after %s", t.Previous.String())
		if t.TrustedRoot > 0 {
			at.add("with a trusted root of %s", printable.Bytes(t.TrustedRoot))
		}
	}
	if r.Document != "" {
		at := top.add("text")
		for line := range strings.Lines(r.Document) {
			at.add("%s", oneLine(strings.TrimRight(line, "\r\n")))
		}
	}
}

func (r inspectResult) referrers(top *branch) {
	if r.Referrers == nil {
		top.add("referrers    could not be listed")
		return
	}
	if len(r.Referrers) == 0 {
		if r.Kind != artifacts.KindSignature {
			top.add("referrers    none: it is not signed")
		}
		return
	}
	at := top.add("referrers    (not verified)")
	for _, f := range r.Referrers {
		line := printable.Digest(f.Digest) + "  " + oneLine(cmp.Or(f.ArtifactType, "no type"))
		if f.Tag != "" {
			line = "tag " + f.Tag
		}
		one := at.add("%s", line)
		for _, s := range f.Statements {
			one.addStatement(s)
		}
		one.some("! %s", strings.ReplaceAll(f.Fault, "\n", "; "))
	}
	if r.Unlisted > 0 {
		at.add("and %d more", r.Unlisted)
	}
}

// addStatement shows the claims of a statement.
func (b *branch) addStatement(s audit.Statement) {
	line := s.Kind
	if s.Kind == "attestation" {
		line += " " + oneLine(s.PredicateType)
	}
	switch {
	case s.Key != "":
		line += " by the key " + printable.Digest(s.Key)
	case s.Identity != "":
		line += " by " + oneLine(s.Identity)
		if s.Issuer != "" {
			line += " (" + oneLine(s.Issuer) + ")"
		}
	default:
		line += " by an unknown key"
	}
	if at := cmp.Or(s.Time, s.Logged); at != "" {
		line += ", " + oneLine(at)
	}
	at := b.add("%s", line)
	for _, k := range slices.Sorted(maps.Keys(s.Annotations)) {
		at.add("%s: %s", oneLine(k), oneLine(s.Annotations[k]))
	}
}
