package sign_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

// newClient is a registry client as a program of its own has one: nothing is shared with others. Each writer of a tag may be held up by
// a busy machine, so they wait for one another for longer.
func newClient(t *testing.T) *registry.Client {
	t.Helper()
	c, err := registry.New(registry.Options{PlainHTTP: true, TagWait: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t *testing.T, name string) *registry.Repository {
	t.Helper()
	r, err := newClient(t).OpenName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// quickSigner has a key of its own, in memory.
func quickSigner(t *testing.T, o sign.Options) *sign.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hand, err := signature.LoadSignerVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return newSigner(t, hand, o)
}

// Eight people sign at the same moment, each from a machine of their own, and every signature stays.
func TestSignersAtOnce(t *testing.T) {
	const people = 8
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy} {
			t.Run(fmt.Sprintf("%s %s", kind, f), func(t *testing.T) {
				server := testenv.Registry(t, kind)
				name := server.Reference("signed")
				subject := pushArtifact(t, open(t, name), "hello")
				var trustees []signing.Verifier
				g, ctx := errgroup.WithContext(t.Context())
				for range people {
					s, r := quickSigner(t, sign.Options{Format: f}), open(t, name)
					trustees = append(trustees, s.Key())
					g.Go(func() error {
						_, err := s.Sign(ctx, r, subject)
						return err
					})
				}
				if err := g.Wait(); err != nil {
					t.Fatal(err)
				}
				found, err := signing.Examine(t.Context(), open(t, name), subject, signing.Query{
					PredicateType: signing.PredicateSign, Verifiers: trustees, Format: f,
					Enough: func([]signing.Signature) bool { return false },
				})
				if err != nil {
					t.Fatal(err)
				}
				by := map[string]bool{}
				for _, s := range found.Good {
					by[s.By] = true
				}
				if len(by) != people || found.Unread != nil {
					t.Errorf("%d of %d signatures are left (%v)", len(by), people, found.Unread)
				}
			})
		}
	}
}

// immutableTags refuses to move any tag, as registries with such a rule do.
func immutableTags() testenv.Rule {
	var mu sync.Mutex
	return testenv.Rule{Method: http.MethodPut, Path: `/manifests/[^:]+$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		look := httptest.NewRecorder()
		next.ServeHTTP(look, httptest.NewRequest(http.MethodGet, r.URL.Path, nil))
		if look.Code == http.StatusOK && !bytes.Equal(look.Body.Bytes(), body) {
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `{"errors":[{"code":"PRECONDITION","message":"configured as immutable"}]}`)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	}}
}

// Where tags cannot be moved a second signature under cosign's tag is refused in words, the first one stays, and bundles go
// on being possible where the registry lists referrers.
func TestImmutableTags(t *testing.T) {
	server := testenv.Registry(t, testenv.Referrers)
	server.Faults.Add(immutableTags())
	r := open(t, server.Reference("signed"))
	subject := pushArtifact(t, r, "hello")
	first, second := quickSigner(t, sign.Options{Format: signing.FormatLegacy}), quickSigner(t, sign.Options{Format: signing.FormatLegacy})
	if _, err := first.Sign(t.Context(), r, subject); err != nil {
		t.Fatal(err)
	}
	_, err := second.Sign(t.Context(), r, subject)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("cannot be written again, the 1 signatures under it are as they were")) {
		t.Errorf("a second signature under an immutable tag: %v", err)
	}
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{first.Key()}); err != nil {
		t.Errorf("the first signature is lost: %v", err)
	}
	for range 3 {
		s := quickSigner(t, sign.Options{})
		if _, err := s.Sign(t.Context(), r, subject); err != nil {
			t.Errorf("a bundle: %v", err)
		}
		if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{s.Key()}); err != nil {
			t.Errorf("a bundle: %v", err)
		}
	}
}

// A registry shows a small signature in the list of referrers, of the API or under the tag, so that no other request is needed. One that does not is
// read as before.
func TestSignatureInTheList(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Referrers, testenv.Distribution, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			server := testenv.Registry(t, kind)
			r := open(t, server.Reference("signed"))
			subject := pushArtifact(t, r, "hello")
			signer := quickSigner(t, sign.Options{})
			if _, err := signer.Sign(t.Context(), r, subject); err != nil {
				t.Fatal(err)
			}
			verify := func(reads int) {
				t.Helper()
				server.Faults.Forget()
				if _, err := signing.Verify(t.Context(), r, subject, signing.Verifiers(signer.Key())); err != nil {
					t.Fatal(err)
				}
				manifests, blobs := server.Faults.Requests(http.MethodGet, "/manifests/sha256:"), server.Faults.Requests(http.MethodGet, "/blobs/")
				if len(manifests) != reads || len(blobs) != 0 {
					t.Errorf("asked for %d manifests and %d blobs, want %d and none", len(manifests), len(blobs), reads)
				}
			}
			verify(0)
			server.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/referrers/", Effect: testenv.Rewrite(func(_ http.Header, body []byte) []byte {
				return bytes.ReplaceAll(body, []byte(signing.AnnotationBundle), []byte("com.example.anything"))
			})})
			if kind == testenv.Referrers {
				verify(1)
			} else {
				verify(0) // the list is under the tag, and has the manifest too
			}
		})
	}
}

// Signatures in another repository are where cosign puts and finds them with COSIGN_REPOSITORY. 2.6 knows it for its older
// format only, and leaves bundles beside the artifact.
func TestCosignRepository(t *testing.T) {
	k := releasePair()
	for name, c := range cosigns() {
		testenv.Program(t, c.program)
		for _, kind := range []testenv.Kind{testenv.Referrers, testenv.Distribution} {
			for f, flags := range c.sign {
				if name == "cosign2" && f == signing.FormatBundle {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %s", name, kind, f), func(t *testing.T) {
					at := newDesk(t, k)
					server := at.registry(t, kind)
					elsewhere := server.Reference("signatures/of-all")
					r := open(t, server.Reference("ours"))
					subject := pushArtifact(t, r, "hello")
					signer := newSigner(t, k.hand, sign.Options{
						Format: f, Place: func(ctx context.Context, beside signing.Store) (signing.Store, error) {
							return beside.(*registry.Repository).Elsewhere(ctx, elsewhere)
						},
					})
					if _, err := signer.Sign(t.Context(), r, subject); err != nil {
						t.Fatal(err)
					}
					if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key}); err == nil {
						t.Error("a signature is beside the artifact")
					}
					t.Setenv("COSIGN_REPOSITORY", elsewhere)
					args := append([]string{"verify", "--key", "k.pub"}, c.verify...)
					if out, err := c.run(t, at, append(args, r.Name()+"@"+subject.Digest.String())...); err != nil {
						t.Errorf("%s does not find ours: %v\n%s", name, err, out)
					}
					other := open(t, server.Reference("theirs"))
					subject = pushArtifact(t, other, "theirs")
					sign := append([]string{"sign", "--key", "k.key", "--yes"}, flags...)
					if out, err := c.run(t, at, append(sign, other.Name()+"@"+subject.Digest.String())...); err != nil {
						t.Fatalf("%s sign: %v\n%s", name, err, out)
					}
					place, err := other.Elsewhere(t.Context(), elsewhere)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := signing.Verify(t.Context(), place, subject, []signing.Verifier{k.Key}); err != nil {
						t.Errorf("we do not find what %s signed: %v", name, err)
					}
				})
			}
		}
	}
}

// One that is refused for a moment looks again before it writes: what others have signed meanwhile is not lost.
func TestSignedMeanwhile(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	r := open(t, server.Reference("signed"))
	subject := pushArtifact(t, r, "hello")
	first, second := quickSigner(t, sign.Options{Format: signing.FormatLegacy}), quickSigner(t, sign.Options{Format: signing.FormatLegacy})
	server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/sha256-.*\.sig$`, Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		testenv.Status(http.StatusServiceUnavailable, 0)(w, r, next)
		// The answer is on its way, and the other one's signature is there before the next try.
		if _, err := second.Sign(context.WithoutCancel(r.Context()), open(t, server.Reference("signed")), subject); err != nil {
			t.Error(err)
		}
	}})
	if _, err := first.Sign(t.Context(), r, subject); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*sign.Signer{first, second} {
		if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{s.Key()}); err != nil {
			t.Error(err)
		}
	}
}
