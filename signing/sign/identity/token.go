package identity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxTokenBytes bounds an identity token. One of GitHub has 1.5 KiB.
const MaxTokenBytes = 64 << 10

// Token is what an identity provider says of who is signing. It is a secret for as long as it is valid.
type Token struct {
	raw    string
	claims struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Email    string `json:"email"`
		Workflow string `json:"job_workflow_ref"` // GitHub's
		Expires  int64  `json:"exp"`
	}
}

// ParseToken reads an identity token (a JSON web token). Nothing of it is verified here, Fulcio does: what it says serves
// to tell a person early what is wrong with it.
func ParseToken(raw string, now time.Time) (Token, error) {
	t := Token{raw: strings.TrimSpace(raw)}
	if len(t.raw) > MaxTokenBytes {
		return Token{}, fmt.Errorf("identity token: %w: more than %d bytes", fault.ErrTooLarge, MaxTokenBytes)
	}
	parts := strings.Split(t.raw, ".")
	if len(parts) != 3 {
		return Token{}, fmt.Errorf("identity token: %w: no JSON web token", fault.ErrInvalid)
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Token{}, fmt.Errorf("identity token: %w: no JSON web token", fault.ErrInvalid) // the error could quote it
	}
	if err := json.Unmarshal(data, &t.claims); err != nil {
		return Token{}, fmt.Errorf("identity token: %w: claims are no JSON", fault.ErrInvalid)
	}
	if t.claims.Issuer == "" || t.claims.Subject == "" {
		return Token{}, fmt.Errorf("identity token: %w: it does not say who, or who says so", fault.ErrInvalid)
	}
	if exp := time.Unix(t.claims.Expires, 0); t.claims.Expires != 0 && !now.Before(exp) {
		return Token{}, fmt.Errorf("identity token: %w: it expired at %s", fault.ErrUnauthenticated, exp.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// Issuer is the identity provider.
func (t Token) Issuer() string { return t.claims.Issuer }

// Subject is who the certificate will be for, as far as that can be told: an address, a workflow's URL. Instances may
// choose another form for other providers.
func (t Token) Subject() string {
	switch {
	case t.claims.Email != "":
		return t.claims.Email
	case t.claims.Workflow != "":
		return "https://github.com/" + t.claims.Workflow
	}
	return t.claims.Subject
}
