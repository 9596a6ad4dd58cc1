package registry_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// A copy has the digest, the content and whatever refers to it; the second moves nothing.
func TestCopyFrom(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to testenv.Kind // to "": another repository of the same registry
	}{
		{"within distribution", testenv.Distribution, ""},
		{"within ociregistry", testenv.Referrers, ""},
		{"to one with another way of referrers", testenv.Distribution, testenv.Referrers},
		{"and back", testenv.Referrers, testenv.Distribution},
		{"to a lax one", testenv.Distribution, testenv.Lax},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := testenv.Registry(t, c.from)
			target := source
			if c.to != "" {
				target = testenv.Registry(t, c.to)
			}
			from := openName(t, clientFor(t, source), source.Host+"/staging/components/line")
			to := openName(t, clientFor(t, target), target.Host+"/production/components/line")
			subject, _ := put(t, from, "line 1.4.1", nil, "1.4.1")
			signature, _ := put(t, from, "signature", &subject, "")
			nested, _ := put(t, from, "of the signature", &signature, "")
			legacy := "sha256-" + subject.Digest.Encoded() + ".sig"
			put(t, from, "legacy", nil, legacy)
			target.Faults.Forget()
			made, err := to.CopyFrom(t.Context(), from, subject.Digest, "1.4.1")
			if err != nil || made.Manifests != 4 || made.Referrers != 3 {
				t.Fatalf("CopyFrom = %+v, %v, want 4 manifests, 3 of them referrers", made, err)
			}
			if c.from == testenv.Distribution && c.to == "" && (made.Mounted != 5 || made.Sent != 0) {
				t.Errorf("%d blobs were shared and %d sent, want 5 shared", made.Mounted, made.Sent)
			}
			if d, err := to.Resolve(t.Context(), "1.4.1"); err != nil || d.Digest != subject.Digest {
				t.Errorf("the tag names %s, %v", d.Digest, err)
			}
			for of, want := range map[*ocispec.Descriptor]ocispec.Descriptor{&subject: signature, &signature: nested} {
				if list, err := to.Referrers(t.Context(), *of); err != nil || len(list) != 1 || list[0].Digest != want.Digest {
					t.Errorf("referrers = %v, %v, want %s", list, err, want.Digest)
				}
			}
			if data, err := to.Blob(t.Context(), blobOf([]byte("line 1.4.1")), 1<<20); err != nil || string(data) != "line 1.4.1" {
				t.Errorf("the layer is %q, %v", data, err)
			}
			if _, err := to.Resolve(t.Context(), legacy); err != nil {
				t.Errorf("the older signature: %v", err)
			}
			again, err := to.CopyFrom(t.Context(), from, subject.Digest, "1.4.1")
			if err != nil || *again != (registry.Copied{}) {
				t.Errorf("again: %+v, %v, want nothing", again, err)
			}
			other, _ := put(t, from, "line 1.4.1, pushed anew", nil, "")
			if _, err := to.CopyFrom(t.Context(), from, other.Digest, "1.4.1"); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
				t.Errorf("over another content: %v", err)
			}
			if _, err := to.CopyFrom(t.Context(), from, blobOf([]byte("nothing")).Digest, ""); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("of nothing: %v", err)
			}
		})
	}
}

// Whether a large blob is at the destination is found out while all slots for transfers are taken.
func TestCopyLooksWithoutASlot(t *testing.T) {
	source, target := testenv.Registry(t, testenv.Distribution), testenv.Registry(t, testenv.Distribution)
	from := openName(t, clientFor(t, source), source.Host+"/images/line")
	data := randomBytes(2 << 20)
	large, _ := put(t, from, string(data), nil, "large")
	slow, _ := put(t, from, "slow", nil, "slow")
	client := newClient(t, registry.Options{CAFile: target.CAFile, Username: target.Username, Password: target.Password, Concurrency: 1})
	to := openName(t, client, target.Host+"/images/line")
	if _, err := to.CopyFrom(t.Context(), from, large.Digest, ""); err != nil {
		t.Fatal(err)
	}
	began, goOn := make(chan struct{}), make(chan struct{})
	source.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: blobOf([]byte("slow")).Digest.Encoded(), Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		close(began)
		<-goOn
		next.ServeHTTP(w, r)
	}})
	ended := make(chan error, 1)
	go func() {
		_, err := to.CopyFrom(t.Context(), from, slow.Digest, "")
		ended <- err
	}()
	<-began
	target.Faults.Forget()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if made, err := to.CopyFrom(ctx, from, large.Digest, ""); err != nil || *made != (registry.Copied{}) {
		t.Errorf("copy of an existing blob: %+v, %v; want nothing copied", made, err)
	}
	if looks := target.Faults.Requests(http.MethodHead, blobOf(data).Digest.Encoded()); len(looks) != 1 {
		t.Errorf("it was looked for %d times, want once", len(looks))
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("what was slow: %v", err)
	}
}

// A registry that does not share gets the bytes; one that cannot be asked is told; a copy that was cut is repeated.
func TestCopyFromEnds(t *testing.T) {
	s := testenv.Registry(t, testenv.Distribution)
	from := openName(t, clientFor(t, s), s.Host+"/staging/line")
	to := openName(t, clientFor(t, s), s.Host+"/production/line")
	subject, _ := put(t, from, "line", nil, "1.4.1")
	put(t, from, "signature", &subject, "")
	s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/production/line/manifests/1\.4\.1$`, Effect: testenv.Status(http.StatusForbidden, 0)})
	if _, err := to.CopyFrom(t.Context(), from, subject.Digest, "1.4.1"); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("not allowed: %v", err)
	}
	s.Faults.Clear()
	if made, err := to.CopyFrom(t.Context(), from, subject.Digest, "1.4.1"); err != nil || made.Manifests != 0 {
		t.Errorf("again: %+v, %v, want only the tag", made, err)
	}
	third := openName(t, clientFor(t, s), s.Host+"/third/line")
	s.Faults.Add(testenv.Rule{Method: http.MethodPost, Path: `/third/line/blobs/uploads`, Times: 1, Effect: testenv.Status(http.StatusForbidden, 0)})
	if made, err := third.CopyFrom(t.Context(), from, subject.Digest, "1.4.1"); err != nil || made.Sent != 1 || made.Mounted != 2 {
		t.Errorf("a mount that is refused: %+v, %v, want one blob sent", made, err)
	}
	layout := newClient(t, registry.Options{})
	disk, err := layout.Open(t.Context(), mustParse(t, "oci-layout:"+t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if made, err := disk.CopyFrom(t.Context(), from, subject.Digest, "1.4.1"); err != nil || made.Sent != 3 {
		t.Errorf("to a layout: %+v, %v", made, err)
	}
}

// A large blob is streamed, and sent again from its beginning when the registry breaks off.
func TestCopyFromStreams(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		source, target := testenv.Registry(t, testenv.Distribution), testenv.Registry(t, kind)
		from := openName(t, clientFor(t, source), source.Host+"/images/line")
		to := openName(t, clientFor(t, target), target.Host+"/images/line")
		large := strings.Repeat("0123456789abcdef", 3<<16)
		subject, _ := put(t, from, large, nil, "1.4.1")
		target.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/images/line/blobs/uploads`, Times: 1, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
		made, err := to.CopyFrom(t.Context(), from, subject.Digest, "1.4.1")
		if err != nil || made.Bytes < int64(len(large)) {
			t.Fatalf("%s: %+v, %v", kind, made, err)
		}
		if data, err := to.Blob(t.Context(), blobOf([]byte(large)), 4<<20); err != nil || string(data) != large {
			t.Errorf("%s: %d bytes, %v", kind, len(data), err)
		}
		disk, err := newClient(t, registry.Options{}).Open(t.Context(), mustParse(t, "oci-layout:"+t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := disk.CopyFrom(t.Context(), to, subject.Digest, "1.4.1"); err != nil {
				t.Errorf("%s: to a layout: %v", kind, err)
			}
		}
	}
}

// Manifests are copied up to the 4 MiB that registries accept; larger ones are named.
func TestCopyFromLargeManifests(t *testing.T) {
	source, target := testenv.Registry(t, testenv.Lax), testenv.Registry(t, testenv.Distribution)
	from := openName(t, clientFor(t, source), source.Host+"/images/line")
	to := openName(t, clientFor(t, target), target.Host+"/images/line")
	layer, _ := put(t, from, "layer", nil, "1")
	_, small, err := from.Manifest(t.Context(), layer.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for size, is := range map[int]error{registry.MaxForeignManifest - 1000: nil, registry.MaxForeignManifest + 1000: fault.ErrTooLarge} {
		data := []byte(strings.Replace(string(small), "{", `{"annotations":{"x":"`+strings.Repeat("x", size-len(small))+`"},`, 1))
		d := blobOf(data).Digest
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, source.URL+"/v2/images/line/manifests/"+d.String(), strings.NewReader(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", ocispec.MediaTypeImageManifest)
		client := source.Client()
		defer client.CloseIdleConnections()
		resp, err := client.Do(r)
		if err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("%v, %v", resp, err)
		}
		resp.Body.Close()
		if _, err := to.CopyFrom(t.Context(), from, d, ""); !errors.Is(err, is) || err != nil && !strings.Contains(err.Error(), d.String()) {
			t.Errorf("CopyFrom of a manifest of %d bytes = %v, want %v", len(data), err, is)
		}
	}
}
