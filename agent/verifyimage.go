package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
)

// ImageVerdict is what the device says about an image that another program on it wants to use.
type ImageVerdict struct {
	Allowed  bool       `json:"allowed"`
	Reason   string     `json:"reason"`             // in one sentence, also of what is allowed
	Code     codes.Code `json:"code,omitempty"`     // of a refusal
	Retry    bool       `json:"retry,omitempty"`    // it could not be found out, and may be later
	SignedBy []string   `json:"signedBy,omitempty"` // signers of the policy
	Insecure bool       `json:"insecure,omitempty"` // the policy says allowUnsigned
}

// VerifyImage holds an image against the trust policy, for containerd's image verifier. It is stricter than the check of an
// image that a signed state names by digest: an image of which no rule speaks may only be used when such a state does name
// it.
func (a *Agent) VerifyImage(ctx context.Context, repository string, d digest.Digest) ImageVerdict {
	v, err := a.intake.VerifyImage(ctx, repository, d)
	switch {
	case err != nil:
		code := codes.Of(err)
		return ImageVerdict{Code: code, Reason: err.Error(), Retry: code == codes.SourceUnreachable || ctx.Err() != nil}
	case len(v.SignedBy) > 0:
		return ImageVerdict{Allowed: true, SignedBy: v.SignedBy, Reason: "signed by " + strings.Join(v.SignedBy, ", ")}
	case v.Insecure:
		return ImageVerdict{Allowed: true, Insecure: true, Reason: "not secure: the trust policy says allowUnsigned"}
	}
	name := repository + "@" + d.String()
	if slices.ContainsFunc(a.Containers(), func(c status.Container) bool { return !c.Obsolete && c.Image == name }) {
		return ImageVerdict{Allowed: true, Reason: "the accepted state names it by this digest"}
	}
	return ImageVerdict{
		Code: codes.ImageRejected, Reason: "no rule of the trust policy speaks about images, and the accepted state does not name this one",
	}
}
