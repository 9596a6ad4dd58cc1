package trust

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// pulse makes a freshness statement of generation 7.
func pulse(t testing.TB, of func() ([]byte, []byte), st signing.Store, subject ocispec.Descriptor, issued time.Time, life time.Duration) {
	t.Helper()
	private, _ := of()
	s, err := signing.NewSigner(private, nil, signing.SignOptions{})
	if err != nil {
		t.Fatal(err)
	}
	said, err := signing.Freshness{Tag: "press-07", Generation: 7, IssuedAt: issued, NotAfter: issued.Add(life)}.Statement()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Attest(t.Context(), st, subject, said); err != nil {
		t.Fatal(err)
	}
}

func TestPolicyFreshness(t *testing.T) {
	const day = 24 * time.Hour
	a, b := KeySigner(publicKey(t, "pulse", pair)), KeySigner(publicKey(t, "other", otherPair))
	late := *a
	late.NotAfter = now
	for _, tc := range []struct {
		name   string
		quorum *Quorum
		revoke *Signer
		do     func(st signing.Store, d ocispec.Descriptor)
		want   Fresh
		err    error
	}{
		{"not asked for", nil, nil, func(signing.Store, ocispec.Descriptor) {}, Fresh{}, nil},
		{"none", &Quorum{Signers: []*Signer{a}}, nil, func(signing.Store, ocispec.Descriptor) {}, Fresh{}, fault.ErrUnsigned},
		{"one", &Quorum{Signers: []*Signer{a, b}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now, 2*day)
		}, Fresh{By: []string{"pulse"}, IssuedAt: now, NotAfter: now.Add(2 * day)}, nil},
		{"one that has ended", &Quorum{Signers: []*Signer{a}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now.Add(-3*day), 2*day)
		}, Fresh{By: []string{"pulse"}, IssuedAt: now.Add(-3 * day), NotAfter: now.Add(-day)}, nil},
		{"another's", &Quorum{Signers: []*Signer{a}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, otherPair, st, d, now, 2*day)
		}, Fresh{}, fault.ErrBadSignature},
		{"two of two, until the first ends", &Quorum{Signers: []*Signer{a, b}, Threshold: 2}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now, 2*day)
			pulse(t, otherPair, st, d, now.Add(-time.Hour), 3*day)
		}, Fresh{By: []string{"pulse", "other"}, IssuedAt: now.Add(-time.Hour), NotAfter: now.Add(2 * day)}, nil},
		{"one of two, twice", &Quorum{Signers: []*Signer{a, b}, Threshold: 2}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now, 2*day)
			pulse(t, pair, st, d, now.Add(-time.Hour), 3*day)
		}, Fresh{}, fault.ErrUnsigned},
		{"revoked", &Quorum{Signers: []*Signer{a}}, a, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now, 2*day)
		}, Fresh{}, fault.ErrUnsigned},
		{"a key that is not trusted any more", &Quorum{Signers: []*Signer{&late}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now, 2*day)
		}, Fresh{}, fault.ErrUnsigned},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			d := st.Artifact(t, "state")
			tc.do(st, d)
			p := &Policy{Rules: []Rule{{Scope: "**", Quorum: Quorum{Signers: []*Signer{a}}, Freshness: tc.quorum}}}
			if tc.revoke != nil {
				p.Revoked = []Revocation{{Key: tc.revoke.Key.Fingerprint}}
			}
			got, err := p.Freshness(t.Context(), Question{Source: st, Kind: KindState, Subject: d, Now: now}, "press-07", 7)
			if !errors.Is(err, tc.err) {
				t.Fatalf("Freshness = %+v, %v, want %v", got, err, tc.err)
			}
			if got.Required != (tc.quorum != nil) || got.Required && len(got.Signers) != len(tc.quorum.Signers) {
				t.Errorf("required %t by %v", got.Required, got.Signers)
			}
			got.Required, got.Signers = false, nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Freshness (-want +got):\n%s", diff)
			}
		})
	}
	if !slices.Equal(sortedPlaces(map[int]int{2: 0, 0: 1}), []int{0, 2}) {
		t.Error("places are not in order")
	}
}
