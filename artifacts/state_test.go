package artifacts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

const (
	idA = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	idB = "ad9b614e-8912-45f4-a523-372358765def"
)

// golden compares with testdata/<name>.golden, or writes it when UPDATE_GOLDEN=1.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := "testdata/" + name + ".golden"
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// show is an artifact for people: its digest, its manifest indented, and what JSON blobs say.
func show(t *testing.T, a *artifacts.Artifact) []byte {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %d bytes\n", a.Descriptor.ArtifactType, a.Descriptor.Digest, a.Descriptor.Size)
	if err := json.Indent(&b, a.Manifest, "", "  "); err != nil {
		t.Fatal(err)
	}
	for _, l := range a.Blobs {
		if digest.FromBytes(l.Data) != l.Descriptor.Digest || int64(len(l.Data)) != l.Descriptor.Size {
			t.Errorf("blob %v is not what it says", l.Descriptor)
		}
		if strings.HasSuffix(l.Descriptor.MediaType, "json") {
			fmt.Fprintf(&b, "\n%s\n%s\n", l.Descriptor.MediaType, l.Data)
		}
	}
	return b.Bytes()
}

func document(id, device string) []byte {
	if device != "" {
		device = "  deviceId: " + device + "\n"
	}
	return []byte("id: " + id + "\nmetadata:\n  name: line-monitor\n  namespace: plant\n" + device + `spec:
  applicationId: line-monitor
  deploymentProfile:
    type: compose
    components:
      - name: web
        properties: {repository: oci://registry.example/web, revision: 1.4.0}
`)
}

// windows reads a list of windows.
func windows(list string) schedule.Windows {
	w, err := schedule.ParseJSON("windows", []byte(list))
	if err != nil {
		panic(err)
	}
	return w
}

const nights = `[{"days":"Mon-Fri","hours":"22:00-05:00","zone":"Europe/Berlin","except":["12-24/01-02"]},{"cron":"0 2 1 * *","duration":"4h","zone":"UTC"}]`

func options() artifacts.StateOptions {
	return artifacts.StateOptions{
		Device: "press-07", Generation: 42, Deployments: [][]byte{document(idB, "press-07"), document(idA, "press-07")},
		Expires: time.Date(2027, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)), Previous: digest.FromString("41"),
		Windows:     windows(nights),
		Created:     time.Unix(1700000000, 0),
		Annotations: map[string]string{ocispec.AnnotationSource: "https://git.example/plant", ocispec.AnnotationRevision: "abc"},
	}
}

func pack(t *testing.T, o artifacts.StateOptions) *artifacts.Artifact {
	t.Helper()
	a, err := artifacts.PackState(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// from serves an artifact's blobs, and records what was asked for.
func from(a *artifacts.Artifact, asked *[]string) func(ocispec.Descriptor) ([]byte, error) {
	return func(d ocispec.Descriptor) ([]byte, error) {
		if asked != nil {
			*asked = append(*asked, d.MediaType)
		}
		for _, b := range a.Blobs {
			if b.Descriptor.Digest == d.Digest {
				return b.Data, nil
			}
		}
		return nil, fmt.Errorf("blob %s: %w", d.Digest, fault.ErrNotFound)
	}
}

func TestPackState(t *testing.T) {
	a := pack(t, options())
	golden(t, "state", show(t, a))
	o := options()
	o.Deployments[0], o.Deployments[1] = o.Deployments[1], o.Deployments[0]
	if again := pack(t, o); again.Descriptor.Digest != a.Descriptor.Digest {
		t.Error("the order of deployments changes the digest")
	}
	golden(t, "state-empty", show(t, pack(t, artifacts.StateOptions{Device: "gateway-1/press-07", Generation: 1})))
}

func TestStateBothWaysGiveTheSame(t *testing.T) {
	a := pack(t, options())
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if x.Device != "press-07" || x.Generation != 42 || !x.Expires.Equal(time.Date(2027, 1, 2, 2, 4, 5, 0, time.UTC)) || x.Previous != digest.FromString("41") || x.Windows.JSON() != nights {
		t.Errorf("OpenState = %+v", x)
	}
	var single, bundled []string
	carryNothing(x)
	x.Manifest.Data = a.Blobs[1].Data
	one, err := x.Read(from(a, &single))
	if err != nil {
		t.Fatal(err)
	}
	two, err := x.ReadBundle(from(a, &bundled))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one, two); diff != "" {
		t.Errorf("Read and ReadBundle differ:\n%s", diff)
	}
	if diff := cmp.Diff([]string{artifacts.TypeDeployment, artifacts.TypeDeployment}, single); diff != "" {
		t.Errorf("Read asked for:\n%s", diff)
	}
	if diff := cmp.Diff([]string{artifacts.TypeBundle}, bundled); diff != "" {
		t.Errorf("ReadBundle asked for:\n%s", diff)
	}
	if len(one.Deployments) != 2 || one.Deployments[0].Document.ID != idA || !bytes.Equal(one.Deployments[0].Bytes, document(idA, "press-07")) {
		t.Errorf("Deployments = %+v", one.Deployments)
	}
	empty := pack(t, artifacts.StateOptions{Device: "press-07", Generation: 1})
	if x, err = artifacts.OpenState(empty.Manifest); err != nil {
		t.Fatal(err)
	}
	if s, err := x.Read(from(empty, nil)); err != nil || len(s.Deployments) != 0 || s.Manifest.Bundle != nil {
		t.Errorf("Read of an empty state = %+v, %v", s, err)
	}
}

func TestStateRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*artifacts.StateOptions)
		want   string
	}{
		"no device":         {func(o *artifacts.StateOptions) { o.Device = "" }, "device id is empty"},
		"bad device":        {func(o *artifacts.StateOptions) { o.Device = "press 07" }, `"press 07" is not a device id`},
		"generation 0":      {func(o *artifacts.StateOptions) { o.Generation = 0 }, "manifestVersion: must be 1 or more"},
		"other device":      {func(o *artifacts.StateOptions) { o.Deployments[1] = document(idA, "press-08") }, `is for device "press-08"`},
		"same id":           {func(o *artifacts.StateOptions) { o.Deployments[1] = document(idB, "press-07") }, "deployment[0] and deployment[1] are both deployment " + idB},
		"invalid, all told": {func(o *artifacts.StateOptions) { o.Deployments = [][]byte{[]byte("a: b"), nil} }, "deployment[1]: is empty"},
		"windows":           {func(o *artifacts.StateOptions) { o.Windows = schedule.All(o.Windows, o.Windows) }, "windows: they are not one list"},
		"previous":          {func(o *artifacts.StateOptions) { o.Previous = "sha256:41" }, `previous "sha256:41" is not a digest`},
		"own annotation":    {func(o *artifacts.StateOptions) { o.Annotations = map[string]string{artifacts.AnnotationDevice: "x"} }, "cannot be given"},
	} {
		o := options()
		tt.change(&o)
		if _, err := artifacts.PackState(o); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: PackState = %v, want fault.ErrInvalid with %q", name, err, tt.want)
		}
	}
	o := options()
	o.Deployments = [][]byte{[]byte(`apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeployment
id: ` + idA + `
metadata: {name: d}
spec: {applicationId: a, deploymentProfile: {type: compose, components: [{name: ui, properties: {packageLocation: https://x.example/a.tar.gz}}]}}
`)}
	if _, err := artifacts.PackState(o); !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) == "" {
		t.Errorf("PackState of a component outside of registries = %v, want fault.ErrUnsupported with a hint", err)
	}
}

func TestOpenStateRefuses(t *testing.T) {
	m := string(pack(t, options()).Manifest)
	layer := func(mediaType string) string {
		return `{"mediaType":"` + mediaType + `","digest":"` + digest.FromString("x").String() + `","size":1}`
	}
	last := func(add string) [2]string {
		return [2]string{`],"annotations":{"dev`, "," + add + `],"annotations":{"dev`}
	}
	bundle := m[strings.Index(m, `{"mediaType":"application/vnd.margo.bundle`):strings.Index(m, `{"mediaType":"application/vnd.margo.deployment`)]
	for name, tt := range map[string]struct {
		edit [2]string
		want string
		is   error
	}{
		"no device":            {[2]string{artifacts.AnnotationDevice, "x"}, "annotation dev.longshore.device: device id is empty", fault.ErrInvalid},
		"bad device":           {[2]string{`device":"press-07"`, `device":"press 07"`}, "is not a device id", fault.ErrInvalid},
		"no generation":        {[2]string{artifacts.AnnotationGeneration, "x"}, `annotation dev.longshore.generation: ""`, fault.ErrInvalid},
		"generation 0":         {[2]string{`generation":"42"`, `generation":"0"`}, `"0" is no whole number`, fault.ErrInvalid},
		"generation 042":       {[2]string{`generation":"42"`, `generation":"042"`}, `"042" is no whole number`, fault.ErrInvalid},
		"generation too large": {[2]string{`generation":"42"`, `generation":"18446744073709551616"`}, "is no whole number", fault.ErrInvalid},
		"generation number":    {[2]string{`generation":"42"`, `generation":42`}, "must be a string, is a number", fault.ErrInvalid},
		"expires":              {[2]string{`2027-01-02T02:04:05Z`, "tomorrow"}, `"tomorrow" is no time`, fault.ErrInvalid},
		"windows":              {[2]string{`"hours\":`, `"hour\":`}, `annotation dev.longshore.windows:1:20: [0].hour: unknown key, did you mean "hours"?`, fault.ErrInvalid},
		"zone":                 {[2]string{`Europe/Berlin`, `Europe/Paname`}, `[0].zone: the time zone "Europe/Paname" is not known here`, fault.ErrInvalid},
		"window never opens":   {[2]string{`12-24/01-02`, `01-01/12-31`}, "[0]: never opens", fault.ErrInvalid},
		"windows of no kind":   {[2]string{strings.ReplaceAll(nights, `"`, `\"`), "none"}, "annotation dev.longshore.windows:1:2: ", fault.ErrInvalid},
		"no window":            {[2]string{strings.ReplaceAll(nights, `"`, `\"`), "[]"}, "annotation dev.longshore.windows:1:1: has no window", fault.ErrInvalid},
		"too many windows":     {[2]string{strings.ReplaceAll(nights, `"`, `\"`), strings.Repeat(" ", artifacts.MaxWindows) + "[]"}, "annotation dev.longshore.windows: 16386 bytes, more than 16384", fault.ErrTooLarge},
		"previous":             {[2]string{`previous":"sha256:`, `previous":"sha256:0`}, "annotation dev.longshore.previous", fault.ErrInvalid},
		"artifact type":        {[2]string{`"artifactType":"application/vnd.margo.manifest.v1+json"`, `"artifactType":"application/vnd.margo.bundle.v1+tar+gzip"`}, "artifact type", fault.ErrUnsupported},
		"media type":           {[2]string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex}, "media type", fault.ErrUnsupported},
		"schema version":       {[2]string{`"schemaVersion":2`, `"schemaVersion":1`}, "schemaVersion: must be 2", fault.ErrInvalid},
		"digest algorithm":     {[2]string{`"digest":"sha256:`, `"digest":"sha512:`}, "is not a digest", fault.ErrInvalid},
		"no state layer":       {[2]string{`"layers":[{"mediaType":"application/vnd.margo.manifest.v1+json"`, `"layers":[{"mediaType":"x"`}, "first layer: media type", fault.ErrUnsupported},
		"unknown layer":        {last(layer("application/x")), `media type "application/x" has no place here`, fault.ErrUnsupported},
		"second bundle":        {last(layer(artifacts.TypeBundle)), "a second bundle", fault.ErrInvalid},
		"layer twice":          {last(layer(artifacts.TypeDeployment) + "," + layer(artifacts.TypeDeployment)), "is there twice", fault.ErrInvalid},
		"no bundle":            {[2]string{bundle, ""}, "there are deployments and no bundle", fault.ErrInvalid},
		"no layers":            {[2]string{`"layers":[`, `"layers":[],"x":[`}, "must have at least one layer", fault.ErrInvalid},
		"too large a document": {last(strings.Replace(layer(artifacts.TypeDeployment), `"size":1`, `"size":1048577`, 1)), "more than 1048576", fault.ErrTooLarge},
		"negative size":        {last(strings.Replace(layer(artifacts.TypeDeployment), `"size":1`, `"size":-1`, 1)), "must not be negative", fault.ErrInvalid},
		"duplicate key":        {[2]string{`{"schemaVersion"`, `{"artifactType":"x","schemaVersion"`}, "artifactType: duplicate key", fault.ErrInvalid},
		"truncated":            {[2]string{m[len(m)/2:], ""}, "manifest:1:", fault.ErrInvalid},
		"trailing":             {[2]string{m, m + "{}"}, "more data after the document", fault.ErrInvalid},
		"not UTF-8":            {[2]string{"press-07", "press\xff"}, "is not UTF-8 text", fault.ErrInvalid},
		"empty":                {[2]string{m, ""}, "is empty", fault.ErrInvalid},
		"wrong type":           {[2]string{m, "[]"}, "must be an object", fault.ErrInvalid},
		"too large":            {[2]string{m, strings.Repeat(" ", artifacts.MaxManifest) + m}, "more than 1048576", fault.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(m, tt.edit[0]) {
				t.Fatalf("%q is not in %s", tt.edit[0], m)
			}
			_, err := artifacts.OpenState([]byte(strings.Replace(m, tt.edit[0], tt.edit[1], 1)))
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("OpenState = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
}

// forge replaces a layer of a state with other bytes and lets the manifest name them, as a careless publisher would.
func forge(t *testing.T, a *artifacts.Artifact, mediaType string, nth int, data []byte) *artifacts.Artifact {
	t.Helper()
	out := &artifacts.Artifact{Manifest: a.Manifest}
	for _, b := range a.Blobs {
		if b.Descriptor.MediaType == mediaType {
			if nth--; nth < 0 {
				old := fmt.Sprintf(`%q,"size":%d`, b.Descriptor.Digest, b.Descriptor.Size)
				out.Manifest = bytes.Replace(out.Manifest, []byte(old), fmt.Appendf(nil, `%q,"size":%d`, digest.FromBytes(data), len(data)), 1)
				b = artifacts.Blob{Descriptor: ocispec.Descriptor{Digest: digest.FromBytes(data)}, Data: data}
				nth = 1 << 30
			}
		}
		out.Blobs = append(out.Blobs, b)
	}
	return out
}

func TestReadStateRefuses(t *testing.T) {
	a := pack(t, options())
	data := func(mediaType string) []byte {
		for _, b := range a.Blobs {
			if b.Descriptor.MediaType == mediaType {
				return b.Data
			}
		}
		t.Fatal(mediaType)
		return nil
	}
	manifest := string(data(artifacts.TypeState))
	other, err := artifacts.PackBundle([][]byte{document(idA, "press-07")})
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer(idA, idB, idB, idA).Replace(manifest)
	for name, tt := range map[string]struct {
		a    *artifacts.Artifact
		want string
		is   error
	}{
		"manifest version":      {forge(t, a, artifacts.TypeState, 0, []byte(strings.Replace(manifest, `"manifestVersion":42`, `"manifestVersion":43`, 1))), "manifestVersion is 43, annotation dev.longshore.generation is 42", fault.ErrInvalid},
		"manifest invalid":      {forge(t, a, artifacts.TypeState, 0, []byte("{}")), "state.json:1:1: manifestVersion is missing", fault.ErrInvalid},
		"ids swapped":           {forge(t, a, artifacts.TypeState, 0, []byte(swapped)), "the manifest calls deployment", fault.ErrInvalid},
		"another bundle":        {forge(t, a, artifacts.TypeBundle, 0, other), "is not among the layers", fault.ErrInvalid},
		"another document":      {forge(t, a, artifacts.TypeDeployment, 0, document(idA, "press-08")), "has no layer", fault.ErrInvalid},
		"manifest without them": {forge(t, a, artifacts.TypeState, 0, []byte(`{"manifestVersion":42,"bundle":null,"deployments":[]}`)), "there is a bundle that the manifest does not name", fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := artifacts.OpenState(tt.a.Manifest)
			if err != nil {
				t.Fatal(err)
			}
			if s, err := x.Read(from(tt.a, nil)); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Read = %v, %v, want %v with %q", s, err, tt.is, tt.want)
			}
		})
	}
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	carryNothing(x)
	for _, kind := range []string{artifacts.TypeState, artifacts.TypeDeployment, artifacts.TypeBundle} {
		lie := func(d ocispec.Descriptor) ([]byte, error) {
			b, err := from(a, nil)(d)
			if d.MediaType == kind {
				b = append(bytes.Clone(b), ' ')
			}
			return b, err
		}
		gone := func(d ocispec.Descriptor) ([]byte, error) {
			if d.MediaType == kind {
				return nil, fault.ErrTemporary
			}
			return from(a, nil)(d)
		}
		read := x.Read
		if kind == artifacts.TypeBundle {
			read = x.ReadBundle
		}
		if _, err := read(lie); !errors.Is(err, fault.ErrDigestMismatch) {
			t.Errorf("Read with another %s = %v, want fault.ErrDigestMismatch", kind, err)
		}
		if _, err := read(gone); !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("Read without %s = %v, want fault.ErrTemporary", kind, err)
		}
	}
}

// carryNothing has a manifest be as that of a large state.
func carryNothing(x *artifacts.StateIndex) {
	x.Manifest.Data = nil
	for i := range x.Deployments {
		x.Deployments[i].Data = nil
	}
}

// TestBundleOnlyState reads the state of a publisher that pushed no single documents.
func TestBundleOnlyState(t *testing.T) {
	a := pack(t, options())
	from1 := bytes.Index(a.Manifest, []byte(`,{"mediaType":"application/vnd.margo.deployment`))
	to := bytes.Index(a.Manifest, []byte(`],"annotations":{"dev`))
	x, err := artifacts.OpenState(append(bytes.Clone(a.Manifest[:from1]), a.Manifest[to:]...))
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	s, err := x.Read(from(a, &asked))
	if err != nil || len(s.Deployments) != 2 || len(asked) != 1 {
		t.Errorf("Read = %v, %v, asked for %v", s, err, asked)
	}
}

// TestBundleWithMore refuses a bundle that holds a document that the manifest does not refer to.
func TestBundleWithMore(t *testing.T) {
	a := pack(t, options())
	manifest := a.Blobs[1].Data
	second := bytes.Index(manifest, []byte(`,{"deploymentId":"`+idB))
	end := bytes.Index(manifest, []byte(`],"manifestVersion"`))
	if second < 0 || end < second {
		t.Fatalf("no second deployment in %s", manifest)
	}
	forged := forge(t, a, artifacts.TypeState, 0, append(bytes.Clone(manifest[:second]), manifest[end:]...))
	x, err := artifacts.OpenState(forged.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Read(from(forged, nil)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "2 layers for the 1 deployments") {
		t.Errorf("Read = %v", err)
	}
	x.Deployments = x.Deployments[:1]
	if _, err := x.ReadBundle(from(forged, nil)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "the bundle has 2 deployments, the manifest 1") {
		t.Errorf("ReadBundle = %v", err)
	}
}

func FuzzOpenState(f *testing.F) {
	for _, o := range []artifacts.StateOptions{options(), {Device: "d", Generation: 1}} {
		a, err := artifacts.PackState(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Manifest)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if x, err := artifacts.OpenState(data); err == nil {
			none := func(ocispec.Descriptor) ([]byte, error) { return nil, fault.ErrNotFound }
			missing := slices.ContainsFunc(append(x.Deployments, x.Manifest), func(d ocispec.Descriptor) bool { return d.Data == nil })
			if _, err := x.Read(none); err == nil && (x.Bundle != nil && len(x.Deployments) == 0 || missing) {
				t.Error("Read without any blob: no error")
			}
			again, err := artifacts.PackState(artifacts.StateOptions{Device: x.Device, Generation: x.Generation, Windows: x.Windows})
			if err == nil {
				var y *artifacts.StateIndex
				if y, err = artifacts.OpenState(again.Manifest); err == nil && y.Windows.JSON() != x.Windows.JSON() {
					t.Errorf("windows %s became %s", x.Windows.JSON(), y.Windows.JSON())
				}
			}
			if err != nil && !errors.Is(err, fault.ErrTooLarge) { // written in one way they may be longer
				t.Errorf("windows %s: %v", x.Windows.JSON(), err)
			}
			if x.Generation == 0 || x.Device.Tag() == "" {
				t.Errorf("OpenState = %+v", x)
			}
		}
		_, _ = artifacts.OpenBundle(data)
		_, _ = artifacts.OpenComponent(data)
		_, _ = artifacts.OpenPackage(data)
	})
}
