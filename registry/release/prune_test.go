package release

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// shelf is a repository of states of which something can be removed.
type shelf struct {
	states
	mu      sync.Mutex
	refuse  error // what RemoveManifest answers; nil: it removes
	freed   []digest.Digest
	removed []digest.Digest
	told    func() // of a removal; nil: nothing
}

func (s *shelf) RemoveManifest(_ context.Context, d digest.Digest, _ ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	if s.removed = append(s.removed, d); s.told != nil {
		s.told()
	}
	for t, there := range s.tags { // every tag that names it goes, as with most registries
		if there == d {
			delete(s.tags, t)
		}
	}
	return nil
}

func (s *shelf) RemoveReferrers(_ context.Context, d digest.Digest, _ *registry.TagList) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = append(s.freed, d)
	return 2, nil
}

func (s *shelf) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states.Resolve(ctx, tag)
}

func (s *shelf) Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states.Tagged(ctx, tag)
}

// publish makes generations 1 to n of a device and returns their digests, from index 1.
func (s *shelf) publish(t *testing.T, device artifacts.DeviceID, n int, repeats map[int]int) []digest.Digest {
	t.Helper()
	all := make([]digest.Digest, n+1)
	for g := 1; g <= n; g++ {
		o := artifacts.StateOptions{Device: device, Generation: uint64(g), Previous: all[g-1]}
		if repeats[g] > 0 {
			o.Repeats = all[repeats[g]]
		}
		all[g] = s.place(t, o, artifacts.HistoryTag(device.Tag(), uint64(g)), device.Tag())
	}
	return all
}

// goes lists what a plan removes: "d: 1 2; e: 1".
func (p *Pruning) goes() string {
	var out []string
	for _, d := range p.Devices {
		var numbers []string
		for _, o := range d.Remove {
			numbers = append(numbers, fmt.Sprint(o.Generation))
		}
		if len(numbers) > 0 {
			out = append(out, d.Tag+": "+strings.Join(numbers, " "))
		}
	}
	return strings.Join(out, "; ")
}

func (p *Pruning) why(tag string) string {
	var out []string
	for _, d := range p.Devices {
		for _, o := range d.Stays {
			if o.Tag == tag {
				out = append(out, o.Why)
			}
		}
	}
	return strings.Join(out, "; ")
}

func TestPlanPrune(t *testing.T) {
	point := func(tag, at string) func(*testing.T, *shelf) {
		return func(_ *testing.T, s *shelf) { s.tags[s.name+":"+tag] = s.tags[s.name+":"+at] }
	}
	for _, c := range []struct {
		name string
		do   func(*testing.T, *shelf) // after 6 generations of d, of which the last repeats the second, and 3 of e
		o    Retention
		goes string
		why  map[string]string // what stays by its tag
	}{
		{name: "the newest", o: Retention{Keep: 3}, goes: "d: 1 3", why: map[string]string{"d.v2": "d repeats it"}},
		{name: "one only", o: Retention{Keep: 1}, goes: "d: 1 3 4; e: 1", why: map[string]string{"d.v2": "d repeats it", "d.v5": "d follows it", "e.v2": "e follows it"}},
		{name: "all there are", o: Retention{Keep: 6}},
		{name: "one device", o: Retention{Keep: 1, Devices: func(tag string) bool { return tag == "e" }}, goes: "e: 1"},
		{
			name: "the tag was moved back", do: point("d", "d.v2"), o: Retention{Keep: 1}, goes: "e: 1", // all above it may be needed
			why: map[string]string{"d.v2": "d names it", "d.v1": "d follows it"},
		},
		{
			name: "a publication that has not ended", do: point("d", "d.v5"), o: Retention{Keep: 1}, goes: "d: 1 3; e: 1",
			why: map[string]string{"d.v2": "generation 6 repeats it", "d.v4": "d follows it", "d.v5": "d names it", "e.v2": "e follows it"},
		},
		{
			name: "what one of the newest repeats, which has it itself", o: Retention{Keep: 3}, goes: "d: 1 2 3 4",
			do: func(t *testing.T, s *shelf) {
				s.place(t, artifacts.StateOptions{Device: "d", Generation: 7, Previous: s.tags[s.name+":d"]}, "d.v7", "d")
			},
		},
		{name: "a tag of people", do: point("golden", "d.v3"), o: Retention{Keep: 3}, goes: "d: 1", why: map[string]string{"d.v3": "golden names it"}},
		{name: "a tag of people like a history", do: point("archive.v3", "d.v3"), o: Retention{Keep: 3}, goes: "d: 1", why: map[string]string{"d.v3": "archive.v3 names it"}},
		{name: "a tag of people that begins like one", do: point("d.vision-ok", "d.v3"), o: Retention{Keep: 3}, goes: "d: 1", why: map[string]string{"d.v3": "d.vision-ok names it"}},
		{name: "a list of signatures", do: point("sha256-abc", "d.v3"), o: Retention{Keep: 3}, goes: "d: 1 3"},
		{name: "a forged tag", do: point("d.v1", "e.v1"), o: Retention{Keep: 3}, goes: "d: 3", why: map[string]string{"d.v1": "not what its tag says"}},
		{name: "two tags of one", do: point("d.v1", "d.v5"), o: Retention{Keep: 3}, goes: "d: 3", why: map[string]string{"d.v1": "not what its tag says"}},
		{name: "no state under the tag", do: point("d", "e"), o: Retention{Keep: 3}, goes: "", why: map[string]string{"d.v1": "is no state of the device"}},
		{name: "without a tag", do: func(_ *testing.T, s *shelf) { delete(s.tags, s.name+":d") }, o: Retention{Keep: 3}, goes: "d: 1 3", why: map[string]string{"d.v2": "generation 6 repeats it"}},
		{
			name: "young ones", o: Retention{Keep: 2, Younger: time.Unix(3, 0), When: func(_ context.Context, d digest.Digest) (time.Time, error) { return time.Time{}, nil }}, goes: "",
			why: map[string]string{"d.v1": "does not say when", "d.v4": "does not say when"},
		},
		{name: "no signature to tell", o: Retention{Keep: 2, Younger: time.Unix(3, 0), When: func(context.Context, digest.Digest) (time.Time, error) {
			return time.Time{}, fault.ErrUnsigned
		}}, goes: "", why: map[string]string{"d.v1": "does not say when"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &shelf{states: states{newMemory()}}
			s.publish(t, "d", 6, map[int]int{6: 2})
			s.publish(t, "e", 3, nil)
			if c.do != nil {
				c.do(t, s)
			}
			p, err := PlanPrune(t.Context(), s, c.o)
			if err != nil || p.goes() != c.goes {
				t.Fatalf("goes %q, %v, want %q", p.goes(), err, c.goes)
			}
			for tag, why := range c.why {
				if got := p.why(tag); !strings.Contains(got, why) {
					t.Errorf("%s stays because %q, want %q", tag, got, why)
				}
			}
			if _, err := p.Remove(t.Context(), s, nil); err != nil {
				t.Fatal(err)
			}
			again, err := PlanPrune(t.Context(), s, c.o)
			if err != nil || again.goes() != "" || again.Stay != p.Stay {
				t.Errorf("once more: goes %q of %d, %v, want nothing of %d", again.goes(), again.Stay, err, p.Stay)
			}
		})
	}
	if _, err := PlanPrune(t.Context(), states{newMemory()}, Retention{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("keep nothing: %v", err)
	}
}

// What devices say that they run stays, and a state's age counts where it is told.
func TestPruneAsks(t *testing.T) {
	s := &shelf{states: states{newMemory()}}
	all := s.publish(t, "gateway/d", 9, nil)
	when := func(_ context.Context, d digest.Digest) (time.Time, error) {
		return time.Unix(int64(slices.Index(all, d)), 0), nil
	}
	o := Retention{Keep: 2, Younger: time.Unix(6, 0), When: when, Needed: func(id artifacts.DeviceID) []Need {
		if id != "gateway/d" {
			t.Errorf("asked for %s", id)
		}
		return []Need{{Digest: all[3], Why: "it may be undone to it"}, {Generation: 6, Why: "the device has it"}, {Generation: 9, Why: "the device has it"}}
	}}
	p, err := PlanPrune(t.Context(), s, o)
	if want := "gateway__d: 1 4"; err != nil || p.goes() != want {
		t.Errorf("goes %q, %v, want %q", p.goes(), err, want)
	}
	for tag, want := range map[string]string{
		"v2": "generation 3, which is needed, follows it", "v3": "it may be undone to it", "v5": "generation 6, which is needed, follows it", "v6": "the device has it",
		"v7": "published 1970-01-01T00:00:07Z",
	} {
		if why := p.why("gateway__d." + tag); why != want {
			t.Errorf("%s stays because %q, want %q", tag, why, want)
		}
	}
	broken := Retention{Keep: 2, Younger: time.Unix(5, 0), When: func(context.Context, digest.Digest) (time.Time, error) { return time.Time{}, fault.ErrTemporary }}
	if _, err := PlanPrune(t.Context(), s, broken); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("%v, want that nobody could tell", err)
	}
}

// What one of the newest follows stays too where a device says that it runs that one: it may go back by itself.
func TestPruneKeepsWhatANewOneFollows(t *testing.T) {
	s := &shelf{states: states{newMemory()}}
	s.publish(t, "d", 6, map[int]int{5: 2})
	p, err := PlanPrune(t.Context(), s, Retention{Keep: 2, Needed: func(artifacts.DeviceID) []Need { return []Need{{Generation: 5, Why: "the device has it"}} }})
	if err != nil || p.goes() != "d: 1 3" {
		t.Errorf("goes %q, %v, want 1 and 3: 5 follows 4 and repeats 2", p.goes(), err)
	}
}

// The tag of a proposal keeps what waits for signatures, and nothing that was published.
func TestPruneOfWhatWasProposed(t *testing.T) {
	s := &shelf{states: states{newMemory()}}
	all := s.publish(t, "d", 5, nil)
	s.place(t, artifacts.StateOptions{Device: "d", Generation: 1}, artifacts.ProposalTag("d", 1))
	s.place(t, artifacts.StateOptions{Device: "d", Generation: 2, Previous: all[1]}, artifacts.ProposalTag("d", 6))
	s.place(t, artifacts.StateOptions{Device: "d", Generation: 3, Previous: "sha256:" + digest.Digest(strings.Repeat("0", 64))}, artifacts.ProposalTag("d", 3)) // overtaken
	p, err := PlanPrune(t.Context(), s, Retention{Keep: 2})
	if err != nil || p.goes() != "d: 1 3" || p.why("d.v2") != "d.v6.proposal names it" {
		t.Fatalf("goes %q, %v, and 2 stays: %q", p.goes(), err, p.why("d.v2"))
	}
	for i, want := range []string{"d.v1 d.v1.proposal", "d.v3 d.v3.proposal"} {
		if got := strings.Join(p.Devices[0].Remove[i].tags(), " "); got != want {
			t.Errorf("removed with %s, want %s", got, want)
		}
	}
}

// counted counts what is asked of a shelf.
type counted struct {
	*shelf
	asked atomic.Int32
}

func (c *counted) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	c.asked.Add(1)
	return c.shelf.Resolve(ctx, tag)
}

func (c *counted) Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	c.asked.Add(1)
	return c.shelf.Tagged(ctx, tag)
}

func (c *counted) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	c.asked.Add(1)
	return c.shelf.Manifest(ctx, d)
}

// Of what stays for being new nothing is asked but what a decision needs; each thing once.
func TestPruneAsksLittle(t *testing.T) {
	for _, c := range []struct {
		name   string
		keep   int
		needed func(all []digest.Digest) []Need
		untag  bool
		asked  int32
		goes   string
	}{
		{name: "nothing is old", keep: 30},
		{name: "one is old", keep: 29, asked: 1 + 1, goes: "d: 1"},
		{name: "ten are", keep: 20, asked: 1 + 10, goes: "d: 1 2 3 4 5 6 7 8 9 10"},
		{name: "a new one is needed", keep: 29, needed: func(all []digest.Digest) []Need { return []Need{{Digest: all[29]}, {Digest: all[30]}} }, asked: 1 + 1 + 1, goes: "d: 1"},
		{name: "an old one is", keep: 28, needed: func(all []digest.Digest) []Need { return []Need{{Digest: all[2], Why: "it is"}} }, asked: 1 + 1 + 2, goes: ""},
		{name: "the device tells of the newest", keep: 29, needed: func([]digest.Digest) []Need { return []Need{{Generation: 30, Why: "it runs"}} }, asked: 1 + 1, goes: "d: 1"},
		{name: "it tells of an earlier one", keep: 29, needed: func([]digest.Digest) []Need { return []Need{{Generation: 20, Why: "it runs"}} }, asked: 1 + 1 + 1, goes: "d: 1"},
		{name: "all may be needed", keep: 20, needed: func([]digest.Digest) []Need { return []Need{{All: true, Why: "who knows"}} }, asked: 1},
		{name: "all may be, and its tag is gone", keep: 29, untag: true, needed: func([]digest.Digest) []Need { return []Need{{All: true, Why: "who knows"}} }, asked: 30 * 2},
		{name: "its tag is gone", keep: 29, untag: true, asked: 30 * 2, goes: "d: 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &counted{shelf: &shelf{states: states{newMemory()}}}
			all := s.publish(t, "d", 30, nil)
			if c.untag {
				delete(s.tags, s.name+":d")
			}
			o := Retention{Keep: c.keep}
			if c.needed != nil {
				o.Needed = func(artifacts.DeviceID) []Need { return c.needed(all) }
			}
			p, err := PlanPrune(t.Context(), s, o)
			if n := s.asked.Load(); err != nil || n != c.asked || p.goes() != c.goes {
				t.Errorf("%d requests, want %d; goes %q, %v, want %q", n, c.asked, p.goes(), err, c.goes)
			}
		})
	}
}

// Whatever the history is, and whatever is kept: what a tag of the device names, the newest, and what the tag's repeats and
// follows are there afterwards, and no signature of something that stays is gone.
func TestPruneKeepsWhatIsNeeded(t *testing.T) {
	for round := range 300 {
		r := rand.New(rand.NewPCG(uint64(round), 1))
		s := &shelf{states: states{newMemory()}}
		n, keep := 1+r.IntN(12), 1+r.IntN(6)
		repeats := map[int]int{}
		for g := 2; g <= n; g++ {
			if r.IntN(3) == 0 {
				repeats[g] = 1 + r.IntN(g-1)
			}
		}
		all := s.publish(t, "d", n, repeats)
		tagged := n
		if r.IntN(4) == 0 {
			tagged = 1 + r.IntN(n)
			s.tags[s.name+":d"] = all[tagged]
		}
		for g := 1; g <= n; g++ { // removed by somebody else
			if g != tagged && r.IntN(8) == 0 {
				delete(s.tags, s.name+":"+artifacts.HistoryTag("d", uint64(g)))
			}
		}
		before := len(s.tags)
		p, err := PlanPrune(t.Context(), s, Retention{Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		gone, err := p.Remove(t.Context(), s, nil)
		if err != nil || before-len(s.tags) != gone.States || gone.Referrers != 2*gone.States || !slices.Equal(slices.Sorted(slices.Values(s.freed)), slices.Sorted(slices.Values(s.removed))) {
			t.Fatalf("round %d: %+v, %v, %d tags less", round, gone, err, before-len(s.tags))
		}
		if s.tags[s.name+":d"] != all[tagged] {
			t.Fatalf("round %d: the tag is gone", round)
		}
		kept := 0
		for g := n; g >= 1; g-- {
			removed := slices.Contains(s.removed, all[g])
			_, there := s.tags[s.name+":"+artifacts.HistoryTag("d", uint64(g))]
			switch {
			case there:
				kept++
			case removed && (kept < keep || g >= tagged || g == tagged-1 || repeats[tagged] == g):
				t.Fatalf("round %d: generation %d of %d is gone, the tag names %d, keep %d", round, g, n, tagged, keep)
			}
		}
	}
}

func TestPruneEnds(t *testing.T) {
	s := &shelf{states: states{newMemory()}, refuse: fmt.Errorf("remove: %w", fault.ErrUnsupported)}
	s.publish(t, "d", 6, nil)
	p, err := PlanPrune(t.Context(), s, Retention{Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Remove(t.Context(), s, nil); !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "0 of 4 old generations removed") || len(s.freed) != 0 {
		t.Errorf("a registry that lets nobody: %v, freed %v", err, s.freed)
	}
	// Somebody moves the tag back to what was to go.
	s.refuse = nil
	s.tags[s.name+":d"] = s.tags[s.name+":d.v2"]
	if _, err := p.Remove(t.Context(), s, nil); !errors.Is(err, fault.ErrConflict) || len(s.removed) != 0 {
		t.Errorf("the tag was moved: %v, removed %v", err, s.removed)
	}
	// Once ended by the caller, what was removed is freed of its signatures nevertheless.
	s.tags[s.name+":d"] = s.tags[s.name+":d.v6"]
	ctx, cancel := context.WithCancel(t.Context())
	s.told = cancel
	gone, err := p.Remove(ctx, s, nil)
	if len(s.freed) != len(s.removed) || gone.States != len(s.removed) {
		t.Errorf("%d removed, %d freed, %v", len(s.removed), len(s.freed), err)
	}
}
