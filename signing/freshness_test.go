package signing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	. "github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// renew makes a freshness statement about a subject.
func renew(t testing.TB, s *sign.Signer, st Store, subject ocispec.Descriptor, tag string, generation uint64, issued time.Time, life time.Duration) {
	t.Helper()
	said, err := sign.NewFreshness(Freshness{Tag: tag, Generation: generation, IssuedAt: issued, NotAfter: issued.Add(life)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Attest(t.Context(), st, subject, said); err != nil {
		t.Fatal(err)
	}
}

func TestFreshness(t *testing.T) {
	const day = 24 * time.Hour
	mine, other := newSigner(t, sign.Options{Name: "pulse"}), otherSigner(t, sign.Options{Name: "thief"})
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, st *signingtest.Memory, subject ocispec.Descriptor)
		want time.Time // of the newest; zero: none
		err  error
	}{
		{"none", func(*testing.T, *signingtest.Memory, ocispec.Descriptor) {}, time.Time{}, fault.ErrUnsigned},
		{"one", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, mine, st, d, "press-07", 7, noon, 2*day)
		}, noon.Add(2 * day), nil},
		{"the one that lasts longest", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, mine, st, d, "press-07", 7, noon, 5*day)
			renew(t, mine, st, d, "press-07", 7, noon.Add(day), 2*day)
			renew(t, mine, st, d, "press-07", 7, noon.Add(-day), day)
		}, noon.Add(5 * day), nil},
		{"another's", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, other, st, d, "press-07", 7, noon, 2*day)
		}, time.Time{}, fault.ErrBadSignature},
		{"about another tag", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, mine, st, d, "press-08", 7, noon, 2*day)
		}, time.Time{}, fault.ErrBadSignature},
		{"about another generation", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, mine, st, d, "press-07", 6, noon, 2*day)
		}, time.Time{}, fault.ErrBadSignature},
		{"about another state", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			old := st.Artifact(t, "old")
			renew(t, mine, st, old, "press-07", 7, noon, 2*day)
			st.Listed[d.Digest] = st.Listed[old.Digest] // the registry says so
		}, time.Time{}, fault.ErrBadSignature},
		{"a signature is none", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			if _, err := mine.Sign(t.Context(), st, d); err != nil {
				t.Fatal(err)
			}
		}, time.Time{}, fault.ErrUnsigned},
		{"not readable", func(t *testing.T, st *signingtest.Memory, d ocispec.Descriptor) {
			renew(t, mine, st, d, "press-07", 7, noon, 2*day)
			st.StripData(t, d)
			st.Fail = func(op, _ string) error {
				if op == "blob" {
					return fault.ErrTemporary
				}
				return nil
			}
		}, time.Time{}, fault.ErrTemporary},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "state")
			tc.do(t, st, subject)
			got, err := FindFreshness(t.Context(), st, subject, FreshnessQuery{Tag: "press-07", Generation: 7, Verifiers: Verifiers(mine.Key())})
			if !errors.Is(err, tc.err) || len(got) == 0 != tc.want.IsZero() {
				t.Fatalf("FindFreshness = %+v, %v, want %v", got, err, tc.err)
			}
			if len(got) > 0 && (!got[0].NotAfter.Equal(tc.want) || got[0].By != "pulse") {
				t.Errorf("the newest = %+v, want until %v", got[0].Freshness, tc.want)
			}
		})
	}
}

// A freshness statement is no signature, and however many there are, signature and newest statement are found.
func TestFreshnessAmongMany(t *testing.T) {
	st := signingtest.NewMemory()
	subject := st.Artifact(t, "state")
	pulse, release := newSigner(t, sign.Options{Name: "pulse"}), otherSigner(t, sign.Options{Name: "release", Once: true})
	for n := range 300 {
		renew(t, pulse, st, subject, "press-07", 7, noon.Add(time.Duration(n)*time.Hour), 2*time.Hour)
	}
	if _, err := Verify(t.Context(), st, subject, Verifiers(pulse.Key())); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify = %v, want %v", err, fault.ErrUnsigned)
	}
	for range 2 { // the second one finds the first
		if _, err := release.Sign(t.Context(), st, subject); err != nil {
			t.Fatal(err)
		}
	}
	if n := st.Asked["blob"] + st.Asked["manifest"]; n > 4 {
		t.Errorf("%d requests for what is not asked for", n)
	}
	if got, err := Verify(t.Context(), st, subject, Verifiers(release.Key())); err != nil || len(got) != 1 {
		t.Errorf("Verify among 300 statements = %v, %v", got, err)
	}
	clear(st.Asked)
	now := noon.Add(300 * time.Hour)
	got, err := FindFreshness(t.Context(), st, subject, FreshnessQuery{
		Tag: "press-07", Generation: 7, Verifiers: Verifiers(pulse.Key()),
		Enough: func(all []FreshnessSignature) bool { return len(all) > 0 && now.Before(all[0].NotAfter) },
	})
	if err != nil || len(got) != 1 || !got[0].IssuedAt.Equal(noon.Add(299*time.Hour)) {
		t.Errorf("FindFreshness = %d, %v", len(got), err)
	}
	if n := st.Asked["blob"] + st.Asked["manifest"]; n > 2 {
		t.Errorf("%d requests for one statement", n)
	}
}

func TestParseFreshness(t *testing.T) {
	const good = `{"tag":"press-07","generation":7,"issuedAt":"2026-11-20T12:00:00Z","notAfter":"2026-11-22T12:00:00Z"}`
	got, err := ParseFreshness([]byte(good))
	want := Freshness{Tag: "press-07", Generation: 7, IssuedAt: noon, NotAfter: noon.Add(48 * time.Hour)}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseFreshness: %v (-want +got):\n%s", err, diff)
	}
	said, err := sign.NewFreshness(want)
	if err != nil || string(said.Predicate) != good {
		t.Errorf("Statement = %s, %v", said.Predicate, err)
	}
	for name, change := range map[string][2]string{
		"no tag":             {`"press-07"`, `""`},
		"long tag":           {`"press-07"`, `"` + strings.Repeat("x", 129) + `"`},
		"no generation":      {`7,`, `0,`},
		"generation as text": {`7,`, `"7",`},
		"member in capitals": {`"tag"`, `"Tag"`},
		"member twice":       {`"generation":7`, `"generation":7,"generation":8`},
		"unknown member":     {`"generation":7`, `"generation":7,"for":"ever"`},
		"missing end":        {`,"notAfter":"2026-11-22T12:00:00Z"`, ``},
		"ends before":        {`11-22T`, `11-19T`},
		"ends at once":       {`11-22T`, `11-20T`},
		"for ever":           {`2026-11-22`, `2099-11-22`},
		"other zone":         {`12:00:00Z","not`, `12:00:00+01:00","not`},
		"fractions":          {`12:00:00Z","not`, `12:00:00.5Z","not`},
		"before our time":    {`2026-11-20T`, `1970-11-20T`},
		"more behind":        {`Z"}`, `Z"} {}`},
	} {
		if _, err := ParseFreshness([]byte(strings.Replace(good, change[0], change[1], 1))); !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := sign.NewFreshness(Freshness{Tag: "x", Generation: 1, IssuedAt: noon, NotAfter: noon.Add(time.Second)}); err == nil {
		t.Error("a statement for a second is made")
	}
}

// What is read is what was written, or refused.
func FuzzFreshness(f *testing.F) {
	f.Add([]byte(`{"tag":"press-07","generation":7,"issuedAt":"2026-11-20T12:00:00Z","notAfter":"2026-11-22T12:00:00Z"}`))
	f.Add([]byte(`{"tag":"x","generation":18446744073709551615,"issuedAt":"2000-01-01T00:00:00Z","notAfter":"2000-01-01T00:01:00Z"}`))
	f.Add([]byte(`{"tag":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseFreshness(data)
		if err != nil {
			return
		}
		said, err := sign.NewFreshness(got)
		if err != nil {
			t.Fatalf("%+v is read and not written: %v", got, err)
		}
		again, err := ParseFreshness(said.Predicate)
		if err != nil || !again.IssuedAt.Equal(got.IssuedAt) || !again.NotAfter.Equal(got.NotAfter) || again.Tag != got.Tag || again.Generation != got.Generation {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}
