package intake

import (
	"context"
	"time"
)

// trustLimit bounds one refresh: a repository that answers slowly must not keep the device from its state for long.
const trustLimit = 2 * time.Minute

// Renewal is how a refresh of the trust policy ended.
type Renewal struct {
	Taken []TrustVersion
	Held  *TrustVersion // it waits for an approval; nil: none does
	Err   error
}

// renew asks for the next trust policy, once in a check. What q was made of is brought up to date.
func (in *Intake) renew(ctx context.Context, q *Query, out *Result) {
	if in.o.Trust == nil || out.Renewal != nil {
		return
	}
	out.Renewal = in.Refresh(ctx, q.HoldTrust)
	if now := in.Fingerprint(); now != q.Policy {
		q.Policy, q.Retry, out.Policy = now, true, now
	}
}

// Refresh asks for the next trust policy, of which there must be one. hold is as in [Trust].
func (in *Intake) Refresh(ctx context.Context, hold func(TrustVersion) bool) *Renewal {
	ctx, cancel := context.WithTimeout(ctx, trustLimit)
	defer cancel()
	taken, held, err := in.o.Trust.Refresh(ctx, hold)
	return &Renewal{taken, held, err}
}
