package trust

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// pulse makes a freshness statement of generation 7.
func pulse(t testing.TB, of func() ([]byte, []byte), st signing.Store, subject ocispec.Descriptor, issued time.Time, life time.Duration) {
	t.Helper()
	private, _ := of()
	s, err := sign.NewSigner(private, nil, sign.Options{})
	if err != nil {
		t.Fatal(err)
	}
	renew(t, s, st, subject, issued, life)
}

// renew is pulse by a signer that is there already.
func renew(t testing.TB, s *sign.Signer, st signing.Store, subject ocispec.Descriptor, issued time.Time, life time.Duration) {
	t.Helper()
	said, err := sign.NewFreshness(signing.Freshness{Tag: "press-07", Generation: 7, IssuedAt: issued, NotAfter: issued.Add(life)})
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
		{"dated far ahead", &Quorum{Signers: []*Signer{a}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now.Add(signing.MaxAhead+time.Hour), 2*day)
		}, Fresh{}, fault.ErrRejected},
		{"dated far ahead, beside one that counts", &Quorum{Signers: []*Signer{a}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now.Add(100*365*day), 2*day)
			pulse(t, pair, st, d, now, 2*day)
		}, Fresh{By: []string{"pulse"}, IssuedAt: now, NotAfter: now.Add(2 * day)}, nil},
		{"dated ahead, as a device sees it whose clock was lost", &Quorum{Signers: []*Signer{a}}, nil, func(st signing.Store, d ocispec.Descriptor) {
			pulse(t, pair, st, d, now.Add(8*365*day), 2*day)
		}, Fresh{By: []string{"pulse"}, IssuedAt: now.Add(8 * 365 * day), NotAfter: now.Add(8*365*day + 2*day)}, nil},
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
			got, err := p.Freshness(t.Context(), VerifyRequest{Source: st, Kind: KindState, Subject: d, Now: now}, "press-07", 7)
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
}

// What has ended, beside what cannot be read now, is no news that nobody renews: the latter may be the renewal. What lasts is
// enough, whatever else cannot be read.
func TestFreshnessThatCannotBeRead(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		name   string
		behind int // statements that ended long ago
		issued time.Time
		err    error
	}{
		{"ended", 0, now.Add(-3 * day), fault.ErrTemporary},
		{"ended, among many", 40, now.Add(-3 * day), fault.ErrTemporary},
		{"lasts", 0, now.Add(-day), nil},
		{"lasts, among many", 40, now.Add(-day), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := signingtest.NewMemory()
			d := st.Artifact(t, "state")
			for n := range tc.behind {
				renew(t, signer(t, "pulse"), st, d, now.Add(-time.Duration(n+10)*day), day)
			}
			renew(t, signer(t, "pulse"), st, d, tc.issued, 2*day)
			renew(t, signer(t, "pulse"), st, d, now, 2*day)
			renewal := st.Listed[d.Digest][tc.behind+1].Digest.String()
			st.Fail = func(op, what string) error {
				if op == "manifest" && what == renewal {
					return fault.ErrTemporary
				}
				return nil
			}
			signer := KeySigner(signer(t, "pulse").Key())
			p := &Policy{Rules: []Rule{{Scope: "**", Quorum: Quorum{Signers: []*Signer{signer}}, Freshness: &Quorum{Signers: []*Signer{signer}}}}}
			got, err := p.Freshness(t.Context(), VerifyRequest{Source: st, Kind: KindState, Subject: d, Now: now}, "press-07", 7)
			if !errors.Is(err, tc.err) || !got.IssuedAt.Equal(tc.issued) {
				t.Errorf("Freshness = %+v, %v, want %v", got, err, tc.err)
			}
		})
	}
}
