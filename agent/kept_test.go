package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const signature = "signature of "

// keeping is a verifier and the content where the signatures are kept that it gives: two signers whose payloads are equal, in cosign's older format.
type keeping struct {
	*agenttest.Verifier
	*agenttest.Content

	mu    sync.Mutex
	full  bool                  // the disk, for signatures and lists of them
	asked int                   // to verify
	again int                   // to verify again, for a rollback
	reads map[digest.Digest]int // of signatures
	block chan struct{}         // what verifying again waits for; nil: nothing
}

func (k *keeping) with(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func isSignature(data []byte) bool {
	return strings.HasPrefix(string(data), signature) || strings.HasPrefix(string(data), `[{"about"`)
}

// Verify implements [intake.Verifier].
func (k *keeping) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	v, err := k.Verifier.Verify(ctx, kind, repository, d)
	k.with(func() { k.asked++ })
	data := []byte(signature + d.Digest.String())
	about, _ := json.Marshal(d.Digest) // text
	for _, by := range []string{"a", "b"} {
		v.Kept = append(v.Kept, intake.Kept{About: about, Data: data, Blob: ocispec.Descriptor{
			MediaType: "text/plain", Digest: digest.FromBytes(data), Size: int64(len(data)), Annotations: map[string]string{"signature": by},
		}})
	}
	return v, err
}

// Reverify implements [intake.Reverifier].
func (k *keeping) Reverify(ctx context.Context, p intake.Part, kept []intake.Kept, read func(context.Context, ocispec.Descriptor) ([]byte, error)) error {
	k.with(func() { k.again++ })
	if k.block != nil {
		<-k.block
	}
	signers := map[string]bool{}
	for _, x := range kept {
		var of digest.Digest
		if err := json.Unmarshal(x.About, &of); err != nil || of != p.Artifact.Digest {
			continue
		}
		if _, err := read(ctx, x.Blob); err != nil {
			return fmt.Errorf("%w: %w", fault.ErrTemporary, err)
		}
		signers[x.Blob.Annotations["signature"]] = true
	}
	if len(signers) < 2 {
		return fmt.Errorf("%d of 2 signers: %w", len(signers), fault.ErrUnsigned)
	}
	return nil
}

func (k *keeping) lacks(data []byte) (err error) {
	k.with(func() {
		if k.full && isSignature(data) {
			err = fmt.Errorf("write: %w", unix.ENOSPC)
		}
	})
	return err
}

// Stage implements [intake.Content].
func (k *keeping) Stage(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	if err := k.lacks(data); err != nil {
		return err
	}
	return k.Content.Stage(ctx, d, data)
}

// StageSpare implements [intake.Content].
func (k *keeping) StageSpare(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return k.Stage(ctx, d, data)
}

// Get implements [intake.Content].
func (k *keeping) Get(ctx context.Context, d digest.Digest) ([]byte, error) {
	data, err := k.Content.Get(ctx, d)
	if strings.HasPrefix(string(data), signature) { // not the list of them
		k.with(func() { k.reads[d]++ })
	}
	return data, err
}

// inKept is inWorld with one.
func inKept(t *testing.T, f func(t *testing.T, w *agenttest.World, k *keeping)) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		k := &keeping{Verifier: w.Verifier, Content: w.Content, reads: map[digest.Digest]int{}}
		w.SetPolicy("1")
		w.Edit = func(o *agent.Options) { o.Verifier, o.Content = k, k }
		f(t, w, k)
	})
}

// back rolls the device back and releases it again.
func back(t *testing.T, r *agenttest.Running) error {
	t.Helper()
	_, err := r.RollBack(t.Context(), agent.RollbackRequest{By: "ana", Via: "command"})
	if err == nil {
		if _, err := r.Release(t.Context(), "ana", "command"); err != nil {
			t.Error(err)
		}
	}
	return err
}

// A disk that is too full for signatures keeps no state away: it may be the one that frees the disk. They are kept when there is room again.
func TestAStateIsAcceptedWithoutRoomForSignatures(t *testing.T) {
	inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
		k.full = true
		r := w.Start(t)
		for g := uint64(1); g <= 2; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			w.Committed(t, r, g)
		}
		if err := back(t, r); !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "could not be kept") {
			t.Errorf("back to what has no signatures: %v", err)
		}
		k.with(func() { k.asked = 0 })
		time.Sleep(2 * time.Hour)
		k.with(func() {
			if k.asked < 2 || k.asked > 3*10 {
				t.Errorf("asked %d times in two hours, want pauses between the tries", k.asked)
			}
			k.full = false
		})
		time.Sleep(30 * time.Minute)
		w.Publish(t, 3, anApp(1, "web:3"))
		w.Committed(t, r, 3)
		if err := back(t, r); err != nil {
			t.Errorf("back to what was kept later: %v", err)
		}
	})
}

// Signatures whose files are damaged are brought again as long as the state is the newest one, and until then garbage is removed all the same.
func TestDamagedSignaturesAreRepaired(t *testing.T) {
	for name, what := range map[string]string{"signatures": signature, "their list": `[{"about"`} {
		t.Run(name, func(t *testing.T) {
			inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
				r := w.Start(t)
				w.Publish(t, 1, anApp(1, "web:1"))
				w.Committed(t, r, 1)
				damage := func() {
					t.Helper()
					n := 0
					w.Content.Damage(func(_ digest.Digest, data string) bool {
						if strings.HasPrefix(data, what) {
							n++
						}
						return strings.HasPrefix(data, what)
					})
					if n == 0 {
						t.Fatal("nothing is kept")
					}
				}
				damage()
				time.Sleep(25 * time.Hour)
				w.Publish(t, 2, anApp(1, "web:2"))
				w.Committed(t, r, 2)
				if err := back(t, r); err != nil {
					t.Errorf("back to what was repaired: %v", err)
				}
				damage() // of generation 1, which is no longer in the registry
				w.Committed(t, r, 2)
				w.Publish(t, 3, anApp(1, "web:3"))
				w.Committed(t, r, 3)
				w.Publish(t, 4, anApp(1, "web:4"))
				w.Committed(t, r, 4)
				time.Sleep(time.Hour)
				n := w.Content.Len()
				for g := uint64(5); g < 9; g++ {
					w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
					w.Committed(t, r, g)
				}
				time.Sleep(time.Hour)
				if m := w.Content.Len(); m > n {
					t.Errorf("%d blobs are kept, there were %d", m, n)
				}
			})
		})
	}
}

// A disk without room for them when they are looked at is asked again within the hour, not a day later.
func TestSignaturesAreRepairedWhenThereIsRoom(t *testing.T) {
	inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
		r := w.Start(t)
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Committed(t, r, 1)
		w.Content.Damage(func(_ digest.Digest, data string) bool { return strings.HasPrefix(data, signature) })
		k.with(func() { k.full = true })
		time.Sleep(25 * time.Hour)
		k.with(func() { k.full = false })
		time.Sleep(time.Hour)
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Committed(t, r, 2)
		if err := back(t, r); err != nil {
			t.Errorf("back to what was repaired: %v", err)
		}
	})
}

// Verifying again for a rollback by hand reads each signature once, and the agent answers meanwhile.
func TestRollbackVerifiesBesideTheLoop(t *testing.T) {
	inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
		r := w.Start(t)
		for g := uint64(1); g <= 2; g++ {
			w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
			w.Committed(t, r, g)
		}
		k.with(func() { clear(k.reads) })
		k.block = make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- back(t, r) }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		answered := make(chan error, 1)
		go func() { _, err := r.Changes(ctx); answered <- err }()
		select {
		case err := <-answered:
			if err != nil {
				t.Error(err)
			}
		case <-ctx.Done():
			t.Error("the agent does not answer while it verifies")
		}
		close(k.block)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		k.with(func() {
			want := map[digest.Digest]int{}
			for d := range k.reads {
				want[d] = 2 // the same payload of two signers
			}
			if len(want) != 3 || !maps.Equal(want, k.reads) {
				t.Errorf("signatures of the state, a component and an image were read %v times", k.reads)
			}
		})
	})
}

// A state that is accepted while an earlier one is verified for a rollback is not what the person wanted to keep away. Another policy verifies again.
func TestWhatChangesWhileARollbackVerifies(t *testing.T) {
	for name, x := range map[string]struct {
		change func(t *testing.T, w *agenttest.World, r *agenttest.Running)
		want   error
		asked  int
	}{
		"a newer state": {func(t *testing.T, w *agenttest.World, r *agenttest.Running) {
			w.Publish(t, 3, anApp(1, "web:3"))
			w.Wait(t, "generation 3", func() bool { return r.Status().Accepted.Generation == 3 })
		}, fault.ErrConflict, 3},
		"the policy": {func(_ *testing.T, w *agenttest.World, _ *agenttest.Running) { w.SetPolicy("2") }, nil, 6},
	} {
		t.Run(name, func(t *testing.T) {
			inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
				r := w.Start(t)
				for g := uint64(1); g <= 2; g++ {
					w.Publish(t, g, anApp(1, fmt.Sprint("web:", g)))
					w.Committed(t, r, g)
				}
				k.block = make(chan struct{})
				done := make(chan error, 1)
				go func() { done <- back(t, r) }()
				time.Sleep(time.Second)
				x.change(t, w, r)
				close(k.block)
				if err := <-done; !errors.Is(err, x.want) {
					t.Errorf("RollBack = %v, want %v", err, x.want)
				}
				k.with(func() {
					if k.again != x.asked {
						t.Errorf("%d parts were verified again, want %d", k.again, x.asked)
					}
				})
			})
		})
	}
}

// Hardware that comes and goes has nothing verified again: the policy is the same.
func TestHardwareThatComesAndGoesVerifiesNothingAgain(t *testing.T) {
	inKept(t, func(t *testing.T, w *agenttest.World, k *keeping) {
		var looks atomic.Int64
		edit := w.Edit
		w.Edit = func(o *agent.Options) {
			edit(o)
			c := o.Capabilities
			o.Machine = func() margo.DeviceCapabilities {
				now := c
				if looks.Add(1)%2 == 0 {
					now.Properties.Peripherals = append(now.Properties.Peripherals, margo.Peripheral{Type: "camera"})
				}
				return now
			}
		}
		w.Pulse.Require("pulse")
		w.Pulse.Renew(w.Publish(t, 1, anApp(1, "web:1")), "pulse", time.Now(), 1000*time.Hour)
		r := w.Start(t)
		w.Committed(t, r, 1)
		time.Sleep(2 * time.Minute) // the next check looks whether the signatures are kept
		k.with(func() { k.asked = 0 })
		w.Pulse.Asked()
		k.with(func() { clear(k.reads) })
		time.Sleep(time.Hour)
		k.with(func() {
			if n := w.Pulse.Asked(); n > 0 || k.asked > 0 || len(k.reads) > 0 || looks.Load() < 30 {
				t.Errorf("in %d looks at the machine signatures were verified %d times and read %v times, and freshness was asked for %d times", looks.Load(), k.asked, k.reads, n)
			}
		})
	})
}
