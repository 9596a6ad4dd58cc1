package online

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxTokenBytes bounds an identity token. One of GitHub has 1.5 KiB.
const MaxTokenBytes = 64 << 10

// audience is for whom a token must be: Fulcio takes no other.
const audience = "sigstore"

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

// ActionsToken asks GitHub Actions for the token of the job that runs; false when no job does, or it may not have one.
// lookup reads the environment.
func ActionsToken(ctx context.Context, client *http.Client, lookup func(string) (string, bool), now time.Time) (Token, bool, error) {
	at, _ := lookup("ACTIONS_ID_TOKEN_REQUEST_URL")
	secret, _ := lookup("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
	if at == "" || secret == "" {
		return Token{}, false, nil
	}
	u, err := url.Parse(at)
	if err != nil {
		return Token{}, true, fmt.Errorf("ask GitHub Actions for an identity token: %w: ACTIONS_ID_TOKEN_REQUEST_URL is no URL", fault.ErrInvalid)
	}
	q := u.Query()
	q.Set("audience", audience)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Token{}, true, fmt.Errorf("ask GitHub Actions for an identity token: %w", err)
	}
	req.Header.Set("Authorization", "bearer "+secret)
	resp, err := client.Do(req)
	if err != nil {
		return Token{}, true, fmt.Errorf("ask GitHub Actions for an identity token: %w: %w", fault.ErrTemporary, err)
	}
	defer resp.Body.Close()
	var answer struct {
		Value string `json:"value"`
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		err := fmt.Errorf("ask GitHub Actions for an identity token: %w: %s", fault.ErrDenied, resp.Status)
		return Token{}, true, fault.WithHint(err, "give the job the permission id-token: write")
	case resp.StatusCode != http.StatusOK:
		return Token{}, true, fmt.Errorf("ask GitHub Actions for an identity token: %w: %s", fault.ErrTemporary, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxTokenBytes)).Decode(&answer); err != nil {
		return Token{}, true, fmt.Errorf("ask GitHub Actions for an identity token: %w: %w", fault.ErrInvalid, err)
	}
	t, err := ParseToken(answer.Value, now)
	return t, true, err
}
