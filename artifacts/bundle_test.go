package artifacts_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestBundle(t *testing.T) {
	_, err := artifacts.PackBundle([][]byte{document(idB, ""), document(idA, "press-07")})
	if err == nil || !strings.Contains(err.Error(), "deployment[0]:3:3: metadata: deviceId is missing") {
		t.Fatalf("PackBundle of an invalid document = %v", err)
	}
	one, err := artifacts.PackBundle([][]byte{document(idB, "a"), document(idA, "b")})
	if err != nil {
		t.Fatal(err)
	}
	two, err := artifacts.PackBundle([][]byte{document(idA, "b"), document(idB, "a")})
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("the order of documents changes the bytes (%v)", err)
	}
	ds, err := artifacts.ReadBundle(one)
	if err != nil {
		t.Fatal(err)
	}
	if len(ds) != 2 || ds[0].Document.ID != idA || !bytes.Equal(ds[1].Bytes, document(idB, "a")) || ds[1].Digest != digest.FromBytes(document(idB, "a")) {
		t.Errorf("ReadBundle = %+v", ds)
	}
	foreign := tarball(t, dir("./"), reg("./whatever", string(document(idA, "b"))), reg("x.txt", string(document(idB, "a"))))
	if again, err := artifacts.ReadBundle(foreign); err != nil || cmp.Diff(ds, again) != "" {
		t.Errorf("ReadBundle of another tool's archive: %v %s", err, cmp.Diff(ds, again))
	}
}

func TestReadBundleRefuses(t *testing.T) {
	good := reg("a.yaml", string(document(idA, "a")))
	for name, tt := range map[string]struct {
		data []byte
		want string
		is   error
	}{
		"nothing":          {nil, "not gzip", fault.ErrInvalid},
		"wrong type":       {document(idA, "a"), "not gzip", fault.ErrInvalid},
		"empty":            {tarball(t), "it is empty", fault.ErrInvalid},
		"truncated":        {tarball(t, good)[:100], "damaged or truncated", fault.ErrInvalid},
		"extra file":       {tarball(t, good, reg("README.md", "# x\n")), "README.md: is empty", fault.ErrInvalid},
		"not UTF-8":        {tarball(t, good, reg("b", "\xff")), "b:1:1: is not UTF-8 text", fault.ErrInvalid},
		"invalid":          {tarball(t, good, reg("b", "id: 7\n")), "b:1:1: metadata is missing", fault.ErrInvalid},
		"same document":    {tarball(t, good, reg("b", string(document(idA, "b")))), "a.yaml and b are both deployment " + idA, fault.ErrInvalid},
		"same in capitals": {tarball(t, good, reg("b", string(document(strings.ToUpper(idA), "b")))), "are both deployment", fault.ErrInvalid},
		"directory":        {tarball(t, good, dir("d")), `"d" is not a file at the root`, fault.ErrInvalid},
		"deeper":           {tarball(t, good, reg("d/b.yaml", "x")), `"d/b.yaml" is not a file at the root`, fault.ErrInvalid},
		"link":             {tarball(t, good, symlink("b.yaml", "a.yaml")), "are both deployment", fault.ErrInvalid},
		"link out":         {tarball(t, good, symlink("b.yaml", "../a.yaml")), "not in the archive's directory", fault.ErrInvalid},
		"device":           {tarball(t, good, special("b", tar.TypeChar)), "is neither file", fault.ErrInvalid},
		"too large":        {tarball(t, good, reg("b", strings.Repeat("# x\n", 300_000))), "more than the 1048576", fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := artifacts.ReadBundle(tt.data); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadBundle = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
	if _, err := artifacts.PackBundle(nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("PackBundle of nothing = %v, want fault.ErrInvalid", err)
	}
}

func TestBundleArtifact(t *testing.T) {
	o := artifacts.BundleOptions{Name: "hall-3", Version: "2026.47", Deployments: [][]byte{document(idB, "a"), document(idA, "b")}, Created: time.Unix(1700000000, 0)}
	a, err := artifacts.PackBundleArtifact(o)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "bundle", show(t, a))
	x, err := artifacts.OpenBundle(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if x.Name != "hall-3" || x.Version != "2026.47" || len(x.Deployments) != 2 {
		t.Errorf("OpenBundle = %+v", x)
	}
	ds, err := x.Read(from(a, nil))
	if err != nil || len(ds) != 2 || ds[0].Document.ID != idA {
		t.Errorf("Read = %+v, %v", ds, err)
	}
	other, err := artifacts.PackBundle([][]byte{document(idA, "b")})
	if err != nil {
		t.Fatal(err)
	}
	forged := forge(t, a, artifacts.TypeBundle, 0, other)
	if x, err = artifacts.OpenBundle(forged.Manifest); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Read(from(forged, nil)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "is not in the archive") {
		t.Errorf("Read with another archive = %v", err)
	}
	x.Deployments = x.Deployments[:1]
	two, err := artifacts.PackBundle([][]byte{document(idA, "b"), document(idB, "a")})
	if err != nil {
		t.Fatal(err)
	}
	x.Archive.Digest, x.Archive.Size = digest.FromBytes(two), int64(len(two))
	forged.Blobs = append(forged.Blobs, artifacts.Blob{Descriptor: x.Archive, Data: two})
	if _, err := x.Read(from(forged, nil)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "the archive has 2 deployments, 1 have layers") {
		t.Errorf("Read with more in the archive than layers = %v", err)
	}
	m := string(a.Manifest)
	for name, tt := range map[string]struct {
		old, new, want string
		is             error
	}{
		"artifact type": {`"artifactType":"`, `"artifactType":"x`, "artifact type", fault.ErrUnsupported},
		"no archive":    {`{"mediaType":"` + artifacts.TypeBundle, `{"mediaType":"` + artifacts.TypeDeployment, "has no layer of type", fault.ErrInvalid},
		"unknown layer": {`{"mediaType":"` + artifacts.TypeDeployment, `{"mediaType":"x`, "has no place here", fault.ErrUnsupported},
	} {
		if _, err := artifacts.OpenBundle([]byte(strings.Replace(m, tt.old, tt.new, 1))); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: OpenBundle = %v, want %v with %q", name, err, tt.is, tt.want)
		}
	}
}

func FuzzReadBundle(f *testing.F) {
	data, err := artifacts.PackBundle([][]byte{document(idA, "a"), document(idB, "b")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(tarball(f, reg("a", "id: 7\n"), symlink("b", "a")))
	f.Fuzz(func(t *testing.T, data []byte) {
		ds, err := artifacts.ReadBundle(data)
		if err != nil {
			return
		}
		var docs [][]byte
		for _, d := range ds {
			docs = append(docs, d.Bytes)
		}
		if _, err := artifacts.PackBundle(docs); err != nil {
			t.Fatalf("pack what was read: %v", err)
		}
	})
}
