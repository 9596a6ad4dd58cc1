package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	problemMedia = "application/problem+json"
	problemBase  = "https://docs.margo.org/specification/problem-types#"
	blank        = "about:blank"
)

// registered are the fragments of the problem types, with the status code of each.
var registered = map[string]int{
	"invalid-request": 400, "semantic-error": 422, "not-authorized": 403, "gateway-not-found": 404, "device-not-found": 404,
	"invalid-bundle": 404, "deployment-not-found": 404, "discovery-document-not-found": 404, "spiffe-bundle-not-found": 404,
	"server-cannot-generate-response": 406,
}

// problem is nil where the answer is a problem document with a status code and a type: a fragment of Margo's, or about:blank.
func (a *answer) problem(status int, fragment string) error {
	if a.status != status {
		return fmt.Errorf("%s, want %d %s", a, status, fragment)
	}
	kind, err := a.document()
	if err != nil {
		return err
	}
	want := problemBase + fragment
	if fragment == blank {
		want = blank
	}
	if kind != want {
		return fmt.Errorf("%s: type is %q, want %q", a.request, kind, want)
	}
	return nil
}

// document checks what every problem document has, and returns its type.
func (a *answer) document() (string, error) {
	if err := a.has("Content-Type", problemMedia); err != nil {
		return "", err
	}
	var doc struct {
		Type, Title       *string
		Status            *int
		Retryable         *bool
		RetryAfterSeconds *int
		BackoffStrategy   *string
		Errors            []struct{ Field, Message string }
	}
	if err := json.Unmarshal(a.body, &doc); err != nil {
		return "", fmt.Errorf("%s: no problem document: %w", a, err)
	}
	if doc.Type == nil || doc.Title == nil || doc.Status == nil || *doc.Title == "" {
		return "", fmt.Errorf("%s: a problem document has type, title and status", a)
	}
	var all []error
	fault := func(format string, args ...any) {
		all = append(all, fmt.Errorf("%s: "+format, append([]any{a}, args...)...))
	}
	if *doc.Status != a.status {
		fault("status in the document is %d", *doc.Status)
	}
	fragment, margo := strings.CutPrefix(*doc.Type, problemBase)
	if code, known := registered[fragment]; margo && (!known || code != a.status) {
		fault("type %q with status %d is not registered", *doc.Type, a.status)
	}
	busy := a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable
	if doc.Retryable == nil || *doc.Retryable != busy {
		fault("retryable must be %v", busy)
	}
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if busy && (err != nil || after < 0) {
		fault("Retry-After is %q", a.header.Get("Retry-After"))
	}
	if busy && (doc.BackoffStrategy == nil || *doc.BackoffStrategy != "exponential") {
		fault("backoffStrategy must be exponential")
	}
	if s := doc.BackoffStrategy; s != nil && !slices.Contains([]string{"none", "fixed", "exponential"}, *s) {
		fault("backoffStrategy is %q", *s)
	}
	return *doc.Type, errors.Join(all...)
}
