package current_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/current"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// device is one that reports into a memory.
type device struct {
	id      artifacts.DeviceID
	private *ecdsa.PrivateKey
	key     signing.Key
	epoch   string
	at      time.Time
}

const (
	firstEpoch = "0b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11"
	nextEpoch  = "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11"
)

func newDevice(t *testing.T, id artifacts.DeviceID) *device {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.NewKey(string(id), private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return &device{id, private, key, firstEpoch, time.Unix(1800000000, 0).UTC()}
}

func (d *device) report(t *testing.T, st *signingtest.Memory, tag string, counter uint64) {
	t.Helper()
	c := &artifacts.CurrentState{
		Device: d.id, Epoch: d.epoch, Counter: counter, Sequence: counter, Time: d.at, Repository: "r.example/state",
		Running:     &artifacts.CurrentGeneration{Generation: 1, Digest: digest.FromString("1")},
		Deployments: []artifacts.CurrentDeployment{}, Capabilities: json.RawMessage(`{"properties":{"id":"` + string(d.id) + `","vendor":"v","modelNumber":"m","serialNumber":"s"}}`),
	}
	statement, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := signing.SignStatement(statement, d.private)
	if err != nil {
		t.Fatal(err)
	}
	a, err := artifacts.PackCurrentState(c, bundle)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range a.Blobs {
		st.Content[b.Descriptor.Digest] = b.Data
	}
	st.Content[a.Descriptor.Digest] = a.Manifest
	st.Tags[artifacts.CurrentTag(tag)] = a.Descriptor
}

func TestRead(t *testing.T) {
	st := signingtest.NewMemory()
	press, other := newDevice(t, "press-07"), newDevice(t, "press-08")
	keys := []signing.Key{other.key, press.key}
	if _, err := current.Read(t.Context(), st, "press-07", keys); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a device that never reported: %v", err)
	}
	press.report(t, st, "press-07", 3)
	r, err := current.Read(t.Context(), st, "press-07", keys)
	if err != nil || r.Counter != 3 || r.By.Name != "press-07" || r.Digest != st.Tags["press-07.current"].Digest {
		t.Fatalf("Read = %+v, %v", r, err)
	}
	if r, err := current.Read(t.Context(), st, "press-07", []signing.Key{other.key}); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("with another device's key: %+v, %v", r, err)
	}
	other.report(t, st, "press-07", 4) // its key is one of those that count, and it says who it is
	if r, err := current.Read(t.Context(), st, "press-07", keys); !errors.Is(err, fault.ErrBadSignature) || !strings.Contains(err.Error(), "press-08") {
		t.Errorf("another device's report: %+v, %v", r, err)
	}
}

func TestMemory(t *testing.T) {
	st, m := signingtest.NewMemory(), current.Memory{}
	press := newDevice(t, "press-07")
	take := func(epoch string, counter uint64) ([]string, error) {
		t.Helper()
		press.epoch = epoch
		press.report(t, st, "press-07", counter)
		r, err := current.Read(t.Context(), st, "press-07", []signing.Key{press.key})
		if err != nil {
			t.Fatal(err)
		}
		notes, err := m.Take(r, time.Unix(1900000000, 0))
		data, wrong := m.Encode() // as between two runs
		if wrong != nil {
			t.Fatal(wrong)
		}
		if m, wrong = current.ParseMemory("seen.json", data); wrong != nil {
			t.Fatal(wrong)
		}
		return notes, err
	}
	for _, tt := range []struct {
		name    string
		epoch   string
		counter uint64
		note    string
		err     error
	}{
		{"first", firstEpoch, 3, "", nil},
		{"next", firstEpoch, 4, "", nil},
		{"gap", firstEpoch, 9, "4 reports between 4 and 9", nil},
		{"old", firstEpoch, 8, "", fault.ErrRollback},
		{"same number, signed again", firstEpoch, 9, "", nil},
		{"another database, not later", nextEpoch, 1, "", fault.ErrRollback},
		{"same number, other content", firstEpoch, 9, "", fault.ErrConflict},
		{"new database", nextEpoch, 1, "new database", nil},
		{"the old database again", firstEpoch, 10, "", fault.ErrRollback},
		{"goes on", nextEpoch, 2, "", nil},
	} {
		if errors.Is(tt.err, fault.ErrConflict) {
			press.at = press.at.Add(time.Second)
		}
		notes, err := take(tt.epoch, tt.counter)
		if !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) || !strings.Contains(strings.Join(notes, "; "), tt.note) || tt.note == "" && len(notes) > 0 {
			t.Errorf("%s: %q, %v", tt.name, notes, err)
		}
	}
	if got := m["press-07"]; got.Counter != 2 || got.Epoch != nextEpoch || len(got.Earlier) != 1 {
		t.Errorf("remembered: %+v", got)
	}
	r, err := current.Read(t.Context(), st, "press-07", []signing.Key{press.key})
	if err != nil {
		t.Fatal(err)
	}
	if notes, err := m.Take(r, time.Unix(1900000000, 0)); err != nil || notes != nil {
		t.Errorf("the same report once more: %q, %v", notes, err)
	}
	if _, err := current.After(r, 3); !errors.Is(err, fault.ErrRollback) {
		t.Errorf("After 3: %v", err)
	}
	if notes, err := current.After(r, 0); err != nil || len(notes) != 1 {
		t.Errorf("After 0: %q, %v", notes, err)
	}
	for _, bad := range []string{"null", "[]", "{", `{"press-07":1}`} {
		if m, err := current.ParseMemory("seen.json", []byte(bad)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseMemory(%q) = %v, %v", bad, m, err)
		}
	}
}

// A clock that was far ahead does not keep the reports of a new database away for ever: a report is no later than when it was taken.
func TestClockAhead(t *testing.T) {
	st, m := signingtest.NewMemory(), current.Memory{}
	press := newDevice(t, "press-07")
	now, taken := press.at, press.at.Add(-time.Minute)
	for _, tt := range []struct {
		epoch  string
		signed time.Time
		want   error
	}{
		{firstEpoch, now.AddDate(60, 0, 0), nil},
		{nextEpoch, now.Add(-time.Hour), fault.ErrRollback},
		{firstEpoch, now.AddDate(60, 0, 0), nil}, // is taken once more, later
		{nextEpoch, now.Add(time.Minute), nil},
		{firstEpoch, now.AddDate(60, 0, 0), fault.ErrRollback},
	} {
		press.epoch, press.at = tt.epoch, tt.signed
		press.report(t, st, "press-07", 7)
		r, err := current.Read(t.Context(), st, "press-07", []signing.Key{press.key})
		if err != nil {
			t.Fatal(err)
		}
		taken = taken.Add(time.Minute)
		if _, err := m.Take(r, taken); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("report of %s signed at %s: %v, want %v", tt.epoch, tt.signed, err, tt.want)
		}
	}
}

// A watch goes on with what an earlier run has seen; missed reports are counted, whether by one run or by several.
func TestWatch(t *testing.T) {
	st, press := signingtest.NewMemory(), newDevice(t, "press-07")
	w := current.NewWatch([]byte("not a memory"))
	for _, tt := range []struct {
		epoch   string
		counter uint64
		note    string
		err     error
		missed  uint64 // by this run
	}{
		{firstEpoch, 3, "", nil, 0},
		{firstEpoch, 3, "", nil, 0},
		{firstEpoch, 6, "", nil, 2},
		{firstEpoch, 5, "", fault.ErrRollback, 0},
		{firstEpoch, 7, "", nil, 0},
		{nextEpoch, 1, "new database", nil, 0},
	} {
		if press.epoch = tt.epoch; tt.note != "" {
			press.at = press.at.Add(time.Second)
		}
		press.report(t, st, "press-07", tt.counter)
		r, err := current.Read(t.Context(), st, "press-07", []signing.Key{press.key})
		if err != nil {
			t.Fatal(err)
		}
		data, err := w.Encode()
		if err != nil {
			t.Fatal(err)
		}
		w = current.NewWatch(data)
		note, err := w.Take(r, time.Unix(1900000000, 0))
		if !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) || !strings.Contains(note, tt.note) || tt.note == "" && note != "" || w.Missed("press-07") != tt.missed || w.AllMissed() != tt.missed {
			t.Errorf("report %d: %q, %v, %d missed", tt.counter, note, err, w.Missed("press-07"))
		}
	}
}

func FuzzMemory(f *testing.F) {
	f.Add([]byte(`{"press-07":{"epoch":"e","counter":3,"digest":"sha256:00","time":"2026-01-01T00:00:00Z","earlier":["d"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := current.ParseMemory("seen.json", data)
		if err != nil {
			return
		}
		if again, err := m.Encode(); err == nil {
			if _, err := current.ParseMemory("seen.json", again); err != nil {
				t.Errorf("ParseMemory of what Encode writes: %v", err)
			}
		}
	})
}
