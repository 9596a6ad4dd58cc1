package trust

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// rotated is version n of a policy whose three signers change one at a time: version n has root-n, root-n+1 and root-n+2.
func rotated(n uint64) doc {
	d := plain(n)
	d.signers = []string{fmt.Sprint("root-", n), fmt.Sprint("root-", n+1), fmt.Sprint("root-", n+2)}
	return d
}

// TestTwentyRotations: one signer leaves and another comes with each version; devices sleep through some of them, and all
// end at the newest, whatever they slept through.
func TestTwentyRotations(t *testing.T) {
	r := newRepository()
	random := rand.New(rand.NewPCG(4, 20))
	var devices []*device
	for range 8 {
		devices = append(devices, newDevice(t, r, rotated(1).text(t)))
	}
	for n := uint64(2); n <= 21; n++ {
		// Those that stay sign: they are two of the old ones and two of the new ones.
		r.push(t, rotated(n), "", fmt.Sprint("root-", n), fmt.Sprint("root-", n+1))
		for i, d := range devices {
			if i == 0 || i < 7 && random.IntN(3) == 0 { // the last one sleeps through all of them
				if random.IntN(4) == 0 {
					d.restart()
				}
				was := d.version()
				if taken, err := d.Refresh(t.Context()); err != nil || d.version() != n || uint64(len(taken)) != n-was {
					t.Fatalf("device %d: from %d: %d steps, %v, version %d, want %d", i, was, len(taken), err, d.version(), n)
				}
			}
		}
	}
	for i, d := range devices {
		if _, err := d.Refresh(t.Context()); err != nil || d.version() != 21 {
			t.Errorf("device %d: %v, version %d, want 21", i, err, d.version())
		}
		d.restart()
		if d.version() != 21 || d.InForce().Kept == nil {
			t.Errorf("device %d: version %d after a restart", i, d.version())
		}
	}
}

// A version that follows another one than the device has is taken, its signers are the same, and told.
func TestVersionThatFollowsAnother(t *testing.T) {
	for _, parted := range []bool{false, true} {
		r := newRepository()
		d := newDevice(t, r, plain(1).text(t))
		previous := r.push(t, plain(2), "", "root-1", "root-2")
		if taken, err := d.Refresh(t.Context()); err != nil || len(taken) != 1 || taken[0].Parted != "" {
			t.Fatalf("Refresh = %v, %v", taken, err)
		}
		want := digest.Digest("")
		if parted {
			other := plain(2)
			other.extra = "# another\n"
			want, previous = previous, r.push(t, other, "", "root-1", "root-2")
		}
		a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 3, Policy: []byte(plain(3).text(t)), Previous: previous})
		if err != nil {
			t.Fatal(err)
		}
		r.pushArtifact(t, a, "v3", "root-1", "root-2")
		if taken, err := d.Refresh(t.Context()); err != nil || len(taken) != 1 || taken[0].Parted != want {
			t.Errorf("parted %t: Refresh = %v, %v, want it to tell %q", parted, taken, err, want)
		}
	}
}

// TestVersionsOnTheWayMayHaveExpired: what a sleeping device goes through was good once, and leads to what is good now.
func TestVersionsOnTheWayMayHaveExpired(t *testing.T) {
	r := newRepository()
	d2 := plain(2)
	d2.expires = "2026-02-01T00:00:00Z"
	d2.keys = map[string]string{"release": ", notAfter: 2026-02-01T00:00:00Z"}
	r.push(t, d2, "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1", "root-2")
	d := newDevice(t, r, plain(1).text(t))
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 3 {
		t.Errorf("Refresh = %v, version %d, want 3", err, d.version())
	}
}

// TestResetsOnTheWayAreKept: what a version does to generations goes to the keeper with that version, also when a device
// slept and goes on to the next one at once.
func TestResetsOnTheWayAreKept(t *testing.T) {
	r := newRepository()
	second := plain(2)
	second.extra = "generations: {resetTo: 1000, version: 2}\n"
	r.push(t, second, "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1", "root-2")
	d := newDevice(t, r, plain(1).text(t))
	var saved []string
	d.keep.saved = func(x Kept) { saved = append(saved, fmt.Sprint(x.Version, x.Generations)) }
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 3 {
		t.Errorf("Refresh = %v, version %d, want 3", err, d.version())
	}
	if want := "[2 above 1000 counts as 1000, once, with version 2 3 <nil>]"; fmt.Sprint(saved) != want {
		t.Errorf("saved %v, want %s", saved, want)
	}
}

func TestChainMovesToAnotherRepository(t *testing.T) {
	r, other := newRepository(), newRepository()
	other.Repository = "other.example/plant/trust"
	moved := plain(2)
	moved.at = other.Repository
	r.push(t, moved, "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1", "root-2") // nobody asks there any more
	third := plain(3)
	third.at = other.Repository
	other.push(t, third, "", "root-1", "root-3")
	d := newDevice(t, r, plain(1).text(t))
	d.at[other.Repository] = other
	if taken, err := d.Refresh(t.Context()); err != nil || len(taken) != 2 || d.version() != 3 || d.InForce().Policy.Trust.Repository != other.Repository {
		t.Errorf("Refresh = %d, %v, version %d", len(taken), err, d.version())
	}
}

// TestFileAndRegistry tells which of the two decides, and how a person gets a device back.
func TestFileAndRegistry(t *testing.T) {
	r := newRepository()
	for n := uint64(2); n <= 7; n++ {
		r.push(t, plain(n), "", "root-1", "root-2")
	}
	edited := plain(1)
	edited.more = "  - {scope: registry.example/lab/**, allowUnsigned: true}\n"
	ninth := plain(9)
	rekeyed := plain(1)
	rekeyed.signers, rekeyed.threshold = []string{"new-1", "new-2"}, 1
	still := plain(1)
	still.at = ""
	for _, tc := range []struct {
		name, file string
		version    uint64
		kept       bool
		override   bool
	}{
		{"as it was", plain(1).text(t), 7, true, false},
		{"edited, same version", edited.text(t), 7, true, true},
		{"a higher version", ninth.text(t), 9, false, false},
		{"an equal version", plain(7).text(t), 7, false, false},
		{"other signers: a lost root", rekeyed.text(t), 1, false, false},
		{"does not travel", still.text(t), 1, false, false},
		{"broken", "rules: {", 0, false, false},
		{"gone", "", 0, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, r, plain(1).text(t))
			if _, err := d.Refresh(t.Context()); err != nil || d.version() != 7 {
				t.Fatalf("Refresh = %v, version %d", err, d.version())
			}
			before := d.Fingerprint()
			d.file = tc.file
			for range 2 {
				s := d.version()
				if st := d.InForce(); s != tc.version || (st.Kept != nil) != tc.kept || st.Override != tc.override || (st.Err != nil) != (tc.version == 0) {
					t.Errorf("version %d, standing %+v, want version %d", s, st, tc.version)
				}
				if changed := d.Fingerprint() != before; changed != (tc.name != "as it was") {
					t.Errorf("fingerprint changed: %v", changed)
				}
				d.restart()
			}
			if tc.version == 0 {
				if _, err := d.Policy(); !errors.Is(err, fault.ErrRejected) || fault.Hint(err) == "" {
					t.Errorf("Policy = %v, want rejected", err)
				}
				if _, err := d.Refresh(t.Context()); err != nil {
					t.Errorf("Refresh = %v", err)
				}
			}
			d.file = plain(1).text(t) // put back: what was reached is not lost
			if d.version() != 7 {
				t.Errorf("version %d with the first file again, want 7", d.version())
			}
		})
	}
	t.Run("goes on from the file", func(t *testing.T) {
		d := newDevice(t, r, plain(1).text(t))
		if _, err := d.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.file = rekeyed.text(t)
		second := rekeyed
		second.version = 2
		fork := newRepository()
		fork.push(t, second, "", "new-1")
		d.at[trustRepository] = fork
		if _, err := d.Refresh(t.Context()); err != nil || d.version() != 2 {
			t.Errorf("Refresh = %v, version %d, want 2", err, d.version())
		}
		d.restart()
		if d.version() != 2 {
			t.Errorf("version %d after a restart", d.version())
		}
	})
}

// TestNothingCountsThatIsNotKept: a power cut or a full disk between the decision and the disk leaves the version before.
func TestNothingCountsThatIsNotKept(t *testing.T) {
	r := newRepository()
	r.push(t, plain(2), "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1", "root-2")
	d := newDevice(t, r, plain(1).text(t))
	full := errors.New("no space left on device")
	d.keep.err = full
	if taken, err := d.Refresh(t.Context()); !errors.Is(err, full) || len(taken) != 0 || d.version() != 1 {
		t.Errorf("Refresh = %v, %v, version %d, want 1", taken, err, d.version())
	}
	d.keep.err = nil
	d.restart()
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 3 || d.keep.saves != 2 {
		t.Errorf("Refresh = %v, version %d, %d saves", err, d.version(), d.keep.saves)
	}
}

// TestDamagedRecordLetsNothingPass: to fall back to the file would be to trust again what was revoked since.
func TestDamagedRecordLetsNothingPass(t *testing.T) {
	r := newRepository()
	d := newDevice(t, r, plain(1).text(t))
	for name, k := range map[string]*keeper{
		"unreadable": {lost: fault.ErrInvalid},
		"no policy":  {kept: &Kept{Version: 7, Anchor: plain(1).policy(t).Anchor(), Document: []byte("x")}},
	} {
		d.keep = k
		d.restart()
		if _, err := d.Policy(); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("%s: Policy = %v", name, err)
		}
		if taken, err := d.Refresh(t.Context()); len(taken) != 0 || err != nil {
			t.Errorf("%s: Refresh = %v, %v", name, taken, err)
		}
	}
	still := plain(1)
	still.at = "" // a policy that does not travel has nothing to do with it
	d.file = still.text(t)
	if d.version() != 1 {
		t.Error("a policy that does not travel does not count")
	}
}

func TestKeysThatExpireChangeTheFingerprint(t *testing.T) {
	r := newRepository()
	f := plain(1)
	f.keys = map[string]string{"root-3": ", notAfter: 2026-12-01T00:00:00Z"}
	d := newDevice(t, r, f.text(t))
	before := d.Fingerprint()
	if d.clock = now.AddDate(0, 0, 1); d.Fingerprint() != before {
		t.Error("the fingerprint changes from day to day")
	}
	if d.clock = now.AddDate(0, 1, 0); d.Fingerprint() == before {
		t.Error("the fingerprint does not change when a key expires")
	}
}

func TestRefreshesAtOnce(t *testing.T) {
	r := newRepository()
	for n := uint64(2); n <= 6; n++ {
		r.push(t, plain(n), "", "root-1", "root-2")
	}
	d := newDevice(t, r, plain(1).text(t))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := d.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
			_ = d.Fingerprint()
			_ = d.InForce()
		})
	}
	wg.Wait()
	if d.version() != 6 || d.keep.saves != 5 {
		t.Errorf("version %d, %d saves", d.version(), d.keep.saves)
	}
}

// TestWhoKeepsMayWaitForWhoAsks: an agent asks what is in force while it holds the lock of the file that the version is to be
// kept in.
func TestWhoKeepsMayWaitForWhoAsks(t *testing.T) {
	r := newRepository()
	r.push(t, plain(2), "", "root-1", "root-2")
	d := newDevice(t, r, plain(1).text(t))
	var writer sync.Mutex // of agent.db
	var asking sync.WaitGroup
	d.keep.saving = func() {
		holds := make(chan struct{})
		asking.Go(func() {
			writer.Lock()
			defer writer.Unlock()
			close(holds)
			if s := d.InForce(); s.Policy == nil || s.Policy.Version != 1 {
				t.Errorf("in force while version 2 is not kept yet: %+v", s)
			}
		})
		<-holds
		writer.Lock()
		defer writer.Unlock()
	}
	if taken, err := d.Refresh(t.Context()); err != nil || len(taken) != 1 {
		t.Fatalf("Refresh = %v, %v", taken, err)
	}
	asking.Wait()
	if s := d.InForce(); s.Policy == nil || s.Policy.Version != 2 || s.Kept == nil {
		t.Errorf("in force afterwards: %+v", s)
	}
}

// TestSlipInTheRepositoryOfTheNext: a version that names the wrong repository for what follows it is told, and is repaired
// where it was published itself.
func TestSlipInTheRepositoryOfTheNext(t *testing.T) {
	const slip = "registry.example/plant/turst"
	for name, wrong := range map[string]*repository{
		"nothing is there": newRepository(), "another fleet's policies are there": newRepository(), "nobody answers": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository()
			d := newDevice(t, r, plain(1).text(t))
			want := ErrMissing
			if wrong == nil {
				want = ErrUnreachable
			} else {
				wrong.Repository = slip
				d.at[slip] = wrong
			}
			if strings.HasPrefix(name, "another") {
				other := plain(2)
				other.at, other.signers = slip, []string{"other-1", "other-2", "other-3"}
				wrong.push(t, other, "", "other-1", "other-2")
				other.version = 3
				wrong.push(t, other, "", "other-1", "other-2")
				want = ErrNotNext
			}
			moved := plain(2)
			moved.at = slip
			r.push(t, moved, "", "root-1", "root-2")
			for range 2 {
				if _, err := d.Refresh(t.Context()); !errors.Is(err, want) || d.version() != 2 {
					t.Fatalf("Refresh = %v, version %d, want %v", err, d.version(), want)
				}
				d.restart()
			}
			r.push(t, plain(3), "", "root-1", "root-2")
			if _, err := d.Refresh(t.Context()); err != nil || d.version() != 3 || d.InForce().Kept.Repository != trustRepository {
				t.Errorf("Refresh = %v, version %d, want 3 from where version 2 was", err, d.version())
			}
			r.push(t, plain(4), "", "root-1", "root-2")
			if _, err := d.Refresh(t.Context()); err != nil || d.version() != 4 {
				t.Errorf("Refresh = %v, version %d, want 4", err, d.version())
			}
		})
	}
}

// TestTheOldRepositoryIsAskedUntilTheNewOneAnswers: and no longer.
func TestTheOldRepositoryIsAskedUntilTheNewOneAnswers(t *testing.T) {
	r, other := newRepository(), newRepository()
	other.Repository = "other.example/plant/trust"
	d := newDevice(t, r, plain(1).text(t))
	d.at[other.Repository] = other
	moved := plain(2)
	moved.at = other.Repository
	r.push(t, moved, "", "root-1", "root-2")
	if _, err := d.Refresh(t.Context()); !errors.Is(err, ErrMissing) || !strings.Contains(fault.Hint(err), trustRepository) {
		t.Errorf("Refresh = %v (%s), want ErrMissing with a hint at the old repository", err, fault.Hint(err))
	}
	other.push(t, moved, "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1", "root-2")
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 2 {
		t.Errorf("Refresh = %v, version %d: the old repository counts no more", err, d.version())
	}
}
