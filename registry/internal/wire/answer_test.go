package wire_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

func respond(status int, contentType, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// written is the response to a request that writes.
func written(resp *http.Response) *http.Response {
	resp.Request = &http.Request{Method: http.MethodPost}
	return resp
}

func TestAnswerError(t *testing.T) {
	const asJSON = "application/json"
	tests := map[string]struct {
		resp *http.Response
		is   error
		text string
	}{
		"unauthorized":        {respond(401, asJSON, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`), fault.ErrUnauthenticated, "401 Unauthorized UNAUTHORIZED (authentication required): not authenticated"},
		"forbidden":           {respond(403, asJSON, `{"errors":[{"code":"DENIED"}]}`), fault.ErrDenied, "403 Forbidden DENIED: denied"},
		"not found, plain":    {respond(404, "text/plain", "404 page not found\n"), fault.ErrNotFound, "not found (the answer was: 404 page not found)"},
		"not found, coded":    {respond(404, asJSON, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`), fault.ErrNotFound, "not found"},
		"harbor, no project":  {written(respond(404, asJSON, `{"errors":[{"code":"NAME_UNKNOWN","message":"project plant not found"}]}`)), fault.ErrNotFound, "404 Not Found NAME_UNKNOWN (project plant not found): not found"},
		"gone":                {respond(410, "", ""), fault.ErrNotFound, "not found"},
		"method":              {respond(405, "", ""), fault.ErrUnsupported, "405 Method Not Allowed: unsupported"},
		"read-only":           {written(respond(405, asJSON, `{"errors":[{"code":"UNSUPPORTED","message":"The operation is unsupported."}]}`)), fault.ErrDenied, "405 Method Not Allowed UNSUPPORTED (The operation is unsupported.): denied"},
		"quay's web page":     {respond(429, "text/html", "<html><body>slow down</body></html>"), fault.ErrTemporary, "429 Too Many Requests: temporarily unavailable"},
		"page without a type": {respond(502, "", "<!DOCTYPE html>"), fault.ErrTemporary, "502 Bad Gateway: temporarily unavailable"},
		"not UTF-8":           {respond(503, "text/plain", "\xff\xfe"), fault.ErrTemporary, "503 Service Unavailable: temporarily unavailable"},
		"too many by code":    {respond(400, asJSON, `{"errors":[{"code":"TOOMANYREQUESTS"}]}`), fault.ErrTemporary, "400 Bad Request TOOMANYREQUESTS: temporarily unavailable"},
		"harbor, immutable":   {respond(412, asJSON, `{"errors":[{"code":"PRECONDITION","message":"configured as immutable"}]}`), fault.ErrConflict, "412 Precondition Failed PRECONDITION (configured as immutable): conflict"},
		"ecr, immutable":      {respond(400, asJSON, `{"errors":[{"code":"TAG_INVALID","message":"The image tag 'v1' already exists and is immutable"}]}`), fault.ErrConflict, "400 Bad Request TAG_INVALID (The image tag 'v1' already exists and is immutable): conflict"},
		"zot, too large":      {respond(413, "", ""), fault.ErrTooLarge, "413 Request Entity Too Large: too large"},
		"digest":              {respond(400, asJSON, `{"errors":[{"code":"DIGEST_INVALID"}]}`), fault.ErrDigestMismatch, "400 Bad Request DIGEST_INVALID: digest mismatch"},
		"invalid":             {respond(400, asJSON, `{"errors":[{"code":"MANIFEST_INVALID"}]}`), fault.ErrInvalid, "400 Bad Request MANIFEST_INVALID: invalid"},
		"full":                {respond(507, "", ""), fault.ErrFull, "507 Insufficient Storage: no room left"},
		"no space":            {respond(500, "text/plain", "write: no space left on device"), fault.ErrFull, "500 Internal Server Error (write: no space left on device): no room left"},
		"harbor, quota":       {respond(403, asJSON, `{"errors":[{"code":"DENIED","message":"will exceed the configured upper limit of 10.0 GiB"}]}`), fault.ErrFull, "403 Forbidden DENIED (will exceed the configured upper limit of 10.0 GiB): no room left"},
		"quota of requests":   {respond(429, "text/plain", "Quota exceeded for requests per minute"), fault.ErrTemporary, "429 Too Many Requests (Quota exceeded for requests per minute): temporarily unavailable"},
		"redirect nowhere":    {respond(302, "", ""), fault.ErrTemporary, "302 Found: temporarily unavailable"},
		"no errors in JSON":   {respond(500, asJSON, `{"errors":[]}`), fault.ErrTemporary, "500 Internal Server Error: temporarily unavailable"},
		"errors of any shape": {respond(500, asJSON, `{"errors":"x"}`), fault.ErrTemporary, `500 Internal Server Error ({"errors":"x"}): temporarily unavailable`},
		"terminal tricks":     {respond(404, "text/plain", "a\x1b[2Jb\x07\r\nc"), fault.ErrNotFound, "not found (the answer was: a[2Jb)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := wire.AnswerError(tt.resp)
			if !errors.Is(err, tt.is) || err.Error() != tt.text {
				t.Errorf("AnswerError = %q, want %q", err, tt.text)
			}
		})
	}
}

func TestAnswerErrorKeepsTheDelay(t *testing.T) {
	resp := respond(429, "application/json", `{"errors":[{"message":"retry-after: 90s"}]}`)
	err := wire.AnswerError(resp)
	if got, ok := fault.RetryAfter(err); !ok || got != 90*time.Second {
		t.Errorf("RetryAfter = %v, %v, want 90s", got, ok)
	}
	if !strings.Contains(err.Error(), "retry-after: 90s") {
		t.Errorf("AnswerError = %q, want the message, which was read twice", err)
	}
}

func TestAnswerErrorIsBounded(t *testing.T) {
	err := wire.AnswerError(respond(400, "text/plain", strings.Repeat("long ", 1<<20)))
	if len(err.Error()) > 600 {
		t.Errorf("AnswerError has %d bytes, want a short line", len(err.Error()))
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("5", "", "")
	f.Add("Fri, 20 Nov 2026 10:00:07 GMT", "Fri, 20 Nov 2026 10:00:00 GMT", "")
	f.Add("", "", "retry-after: 1.16676ms, allowed")
	f.Add("-1", "x", "Retry-After: 9999999999999999h")
	f.Fuzz(func(t *testing.T, header, date, body string) {
		resp := respond(429, "", body)
		resp.Header.Set("Retry-After", header)
		resp.Header.Set("Date", date)
		if d, _ := wire.RetryAfter(resp); d < 0 || d > 24*time.Hour {
			t.Errorf("RetryAfter(%q, %q, %q) = %v, want 0 to 24h", header, date, body, d)
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != body {
			t.Errorf("the body was %q and is %q, %v", body, rest, err)
		}
	})
}

func FuzzAnswerError(f *testing.F) {
	f.Add(404, "application/json", `{"errors":[{"code":"X","message":"y"}]}`)
	f.Add(429, "text/html", "<html>")
	f.Fuzz(func(t *testing.T, status int, contentType, body string) {
		if status < 100 || status > 999 {
			return
		}
		err := wire.AnswerError(respond(status, contentType, body))
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !utf8.ValidString(err.Error()) {
			t.Errorf("AnswerError(%d, %q) = %q", status, body, err)
		}
	})
}
