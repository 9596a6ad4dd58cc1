package artifacts_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func trustOptions() artifacts.TrustOptions {
	return artifacts.TrustOptions{
		Version: 7, Policy: []byte("version: 7\nrules: []\n"), TrustedRoot: []byte("{}"), Previous: digest.FromString("6"),
		Created: time.Unix(1700000000, 0), Annotations: map[string]string{ocispec.AnnotationRevision: "abc"},
	}
}

func packTrust(t testing.TB, o artifacts.TrustOptions) *artifacts.Artifact {
	t.Helper()
	a, err := artifacts.PackTrust(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPackTrust(t *testing.T) {
	a := packTrust(t, trustOptions())
	golden(t, "trust", show(t, a))
	if again := packTrust(t, trustOptions()); again.Descriptor.Digest != a.Descriptor.Digest {
		t.Error("the same options have another digest")
	}
	x, err := artifacts.OpenTrust(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	policy, root, err := x.Read(from(a, nil))
	if err != nil || x.Version != 7 || x.Previous != digest.FromString("6") || !bytes.Equal(policy, trustOptions().Policy) || string(root) != "{}" {
		t.Errorf("OpenTrust = %+v; Read = %q, %q, %v", x, policy, root, err)
	}
	x, err = artifacts.OpenTrust(packTrust(t, artifacts.TrustOptions{Version: 1, Policy: []byte("a")}).Manifest)
	if err != nil || x.TrustedRoot != nil || x.Previous != "" {
		t.Errorf("OpenTrust of the smallest = %+v, %v", x, err)
	}
}

func TestPackTrustRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*artifacts.TrustOptions)
		want error
	}{
		"no version":      {func(o *artifacts.TrustOptions) { o.Version = 0 }, fault.ErrInvalid},
		"empty":           {func(o *artifacts.TrustOptions) { o.Policy = nil }, fault.ErrInvalid},
		"large":           {func(o *artifacts.TrustOptions) { o.Policy = make([]byte, artifacts.MaxTrustPolicy+1) }, fault.ErrTooLarge},
		"large root":      {func(o *artifacts.TrustOptions) { o.TrustedRoot = make([]byte, artifacts.MaxTrustedRoot+1) }, fault.ErrTooLarge},
		"previous":        {func(o *artifacts.TrustOptions) { o.Previous = "sha256:1" }, fault.ErrInvalid},
		"own annotations": {func(o *artifacts.TrustOptions) { o.Annotations = map[string]string{"dev.longshore.x": "1"} }, fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := trustOptions()
			tt.edit(&o)
			if a, err := artifacts.PackTrust(o); !errors.Is(err, tt.want) {
				t.Errorf("PackTrust = %v, %v, want %v", a, err, tt.want)
			}
		})
	}
}

func TestOpenTrustRefuses(t *testing.T) {
	a := packTrust(t, trustOptions())
	m := string(a.Manifest)
	for name, tt := range map[string]struct {
		old, new string
		want     error
	}{
		"another artifact": {`"artifactType":"` + artifacts.TypeTrust, `"artifactType":"` + artifacts.TypeState, fault.ErrUnsupported},
		"version zero":     {`trust.version":"7"`, `trust.version":"0"`, fault.ErrInvalid},
		"version 07":       {`trust.version":"7"`, `trust.version":"07"`, fault.ErrInvalid},
		"no version":       {`trust.version":"7"`, `trust.versio":"7"`, fault.ErrInvalid},
		"previous":         {`"dev.longshore.previous":"sha256:`, `"dev.longshore.previous":"sha256:0`, fault.ErrInvalid},
		"root first":       {`"mediaType":"` + artifacts.TypeTrust, `"mediaType":"` + artifacts.TypeTrustedRoot, fault.ErrUnsupported},
		"second policy":    {`"mediaType":"` + artifacts.TypeTrustedRoot, `"mediaType":"` + artifacts.TypeTrust, fault.ErrUnsupported},
		"10 MB":            {`"size":21`, `"size":10485760`, fault.ErrTooLarge},
		"10 MB root":       {`"size":2,"annotations"`, `"size":10485760,"annotations"`, fault.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			forged := strings.Replace(m, tt.old, tt.new, 1)
			if forged == m {
				t.Fatalf("%q is not in %s", tt.old, m)
			}
			if x, err := artifacts.OpenTrust([]byte(forged)); !errors.Is(err, tt.want) {
				t.Errorf("OpenTrust = %+v, %v, want %v", x, err, tt.want)
			}
		})
	}
	for n := range a.Manifest { // a transfer that was cut
		if x, err := artifacts.OpenTrust(a.Manifest[:n]); err == nil {
			t.Fatalf("OpenTrust of %d bytes = %+v", n, x)
		}
	}
	x, err := artifacts.OpenTrust(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{artifacts.TypeTrust, artifacts.TypeTrustedRoot} {
		if _, _, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) {
			data, err := from(a, nil)(d)
			if d.MediaType == kind {
				data = append(bytes.Clone(data), ' ')
			}
			return data, err
		}); !errors.Is(err, fault.ErrDigestMismatch) {
			t.Errorf("Read with another %s = %v", kind, err)
		}
	}
}

func TestTrustTags(t *testing.T) {
	for tag, want := range map[string]string{
		"v1": "1 false true", "v7.proposal": "7 true true", "v18446744073709551615": "18446744073709551615 false true",
		"v0": "0 false false", "v07": "0 false false", "v": "0 false false", "7": "0 false false", "v7.": "0 false false",
		"v7.proposals": "0 false false", "v7.1": "0 false false", "v18446744073709551616": "0 false false", "v+7": "0 false false", "": "0 false false",
	} {
		version, proposal, ok := artifacts.ParseTrustTag(tag)
		if got := fmt.Sprint(version, proposal, ok); got != want {
			t.Errorf("ParseTrustTag(%q) = %s, want %s", tag, got, want)
		}
	}
}

func FuzzOpenTrust(f *testing.F) {
	f.Add(packTrust(f, trustOptions()).Manifest)
	f.Add(packTrust(f, artifacts.TrustOptions{Version: 1, Policy: []byte("a")}).Manifest)
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := artifacts.OpenTrust(data)
		if err != nil {
			return
		}
		if x.Version == 0 || x.Policy.Size > artifacts.MaxTrustPolicy || x.TrustedRoot != nil && x.TrustedRoot.Size > artifacts.MaxTrustedRoot {
			t.Errorf("OpenTrust = %+v", x)
		}
		if _, _, err := x.Read(func(ocispec.Descriptor) ([]byte, error) { return nil, nil }); err == nil && x.Policy.Size != 0 {
			t.Error("Read of nothing: no error")
		}
	})
}
