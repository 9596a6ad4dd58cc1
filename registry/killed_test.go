package registry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/registry/storetest"
	"github.com/longshore-dev/longshore/testenv"
)

// referring signs by what has to be there of a signature: a manifest that refers to the subject.
type referring struct{ t testing.TB }

func (s referring) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	layer := []byte("signature")
	if err := repo.PushBlob(ctx, storetest.Empty(), []byte("{}")); err != nil {
		return err
	}
	if err := repo.PushBlob(ctx, storetest.BlobOf(layer), layer); err != nil {
		return err
	}
	desc, data := storetest.ManifestOf(s.t, storetest.BlobOf(layer), &subject)
	return repo.PushReferrer(ctx, desc, data)
}

// A publisher that is gone before or after any of its requests leaves no tag on what is not signed, and the same
// publication taken up again comes to its end.
func TestPublisherKilledAtEachRequest(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		for name, last := range map[string]testenv.Effect{"before": testenv.Reset(), "after": testenv.LoseAnswer()} {
			t.Run(string(kind)+", "+name, func(t *testing.T) {
				t.Parallel()
				s := testenv.Registry(t, kind)
				a := stateOf(t, 1, "", "one")
				for n, ended := 0, false; !ended; n++ {
					where := s.Reference("plant/state" + string(rune('a'+n/26)) + string(rune('a'+n%26)))
					publish := func(budget time.Duration) error {
						_, err := release.Publish(t.Context(), openName(t, newClient(t, registry.Options{RetryBudget: budget, TagWait: time.Millisecond}), where), a, release.PublishOptions{
							Signer: referring{t}, HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{},
						})
						return err
					}
					s.Faults.Add(testenv.Rule{Skip: n, Times: 1, Effect: last})
					s.Faults.Add(testenv.Rule{Skip: n, Effect: testenv.Reset()}) // the rule before takes what it breaks
					ended = publish(-1) == nil
					s.Faults.Clear()
					looker := openName(t, clientFor(t, s), where)
					for _, tag := range []string{"press-07.v1", "press-07"} {
						d, err := looker.Resolve(t.Context(), tag)
						if errors.Is(err, fault.ErrNotFound) {
							continue
						}
						if list, refErr := looker.Referrers(t.Context(), d); err != nil || refErr != nil || len(list) == 0 {
							t.Errorf("after %d requests %s names what %d refer to: %v, %v", n, tag, len(list), err, refErr)
						}
					}
					if err := publish(time.Second); err != nil {
						t.Errorf("taken up after %d requests: %v", n, err)
					}
					if d, err := looker.Resolve(t.Context(), "press-07"); err != nil || d.Digest != a.Descriptor.Digest {
						t.Errorf("taken up after %d requests: the tag names %s, %v", n, d.Digest, err)
					}
					if n > 60 {
						t.Fatal("it never ended")
					}
					if ended && n < 10 {
						t.Errorf("only %d requests", n)
					}
				}
			})
		}
	}
}
