package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxErrorBody    = 64 << 10 // an error answer is a few hundred bytes; the rest is a web page
	maxErrorMessage = 300      // length of a registry's message in ours
)

// AnswerError turns an unexpected response into an error. It consumes and closes the body.
func AnswerError(resp *http.Response) error {
	defer resp.Body.Close()
	delay, asked := RetryAfter(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		body = nil
	}
	code, message := readBody(resp.Header.Get("Content-Type"), body)
	method := ""
	if resp.Request != nil {
		method = resp.Request.Method
	}
	out := StatusError(method, resp.StatusCode, code, message)
	if asked {
		out = fault.WithRetryAfter(out, min(delay, maxRetryAfter))
	}
	return out
}

// readBody finds the registry's message: its JSON errors, or one line of text. A web page is ignored.
func readBody(contentType string, body []byte) (code, message string) {
	var answer struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &answer) == nil {
		if len(answer.Errors) > 0 {
			return Clean(answer.Errors[0].Code), Clean(answer.Errors[0].Message)
		}
		return "", ""
	}
	text := strings.TrimSpace(string(body))
	if strings.Contains(contentType, "html") || bytes.HasPrefix(body, []byte("<")) || !utf8.Valid(body) {
		return "", ""
	}
	line, _, _ := strings.Cut(text, "\n")
	return "", Clean(line)
}

// HintLogin is the hint of an error about missing or rejected credentials.
const HintLogin = "log in, or check the user name and password or token for this registry"

// StatusError turns the status of a request into an error with a sentinel. code and message are the registry's, if any.
func StatusError(method string, status int, code, message string) error {
	kind := sentinel(status, code, message)
	readOnly := status == http.StatusMethodNotAllowed && (method == http.MethodPost || method == http.MethodPut) // PATCH may be unknown elsewhere
	if readOnly {
		kind = fault.ErrDenied
	}
	read := method == "" || method == http.MethodGet || method == http.MethodHead
	if read && errors.Is(kind, fault.ErrNotFound) { // the caller names what was asked for; what a registry says of it adds nothing
		if code == "" && message != "" {
			return fmt.Errorf("%w (the answer was: %s)", kind, Clean(message))
		}
		return kind
	}
	said := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if code != "" {
		said += " " + code
	}
	if message != "" {
		said += " (" + Clean(message) + ")"
	}
	err := fmt.Errorf("%s: %w", strings.TrimSpace(said), kind)
	switch {
	case status == http.StatusUnauthorized:
		return fault.WithHint(err, HintLogin)
	case errors.Is(err, fault.ErrFull):
		return fault.WithHint(err, "the registry has no room left: remove what is not needed there, or raise its limit")
	case status == http.StatusForbidden:
		return fault.WithHint(err, "this account may not do that here")
	case readOnly:
		return fault.WithHint(err, "the registry is read-only: a cache, a copy on media, or in maintenance")
	case strings.Contains(message, "HTTP request to an HTTPS server"):
		return fault.WithHint(err, "this registry speaks HTTPS: leave out --plain-http; for a registry on this machine give --plain-http=false")
	}
	return err
}

// full reports whether a response means that the registry's disk or quota is used up. Harbor answers 403, others 500 or 507. A
// quota of requests (429) is a different error.
func full(status int, lower string) bool {
	return status == http.StatusInsufficientStorage || strings.Contains(lower, "no space left") || strings.Contains(lower, "quota") ||
		strings.Contains(lower, "configured upper limit")
}

func sentinel(status int, code, message string) error {
	lower := strings.ToLower(message)
	switch {
	case code == "TOOMANYREQUESTS", status == http.StatusTooManyRequests:
		return fault.ErrTemporary
	case full(status, lower):
		return fault.ErrFull
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		return fault.ErrTemporary
	case status == http.StatusUnauthorized:
		return fault.ErrUnauthenticated
	case status == http.StatusForbidden:
		return fault.ErrDenied
	case status == http.StatusNotFound, status == http.StatusGone:
		return fault.ErrNotFound
	case status == http.StatusConflict, status == http.StatusPreconditionFailed,
		status == http.StatusBadRequest && (strings.Contains(lower, "immutable") || strings.Contains(lower, "already exists")):
		return fault.ErrConflict
	case status == http.StatusRequestEntityTooLarge:
		return fault.ErrTooLarge
	case code == "DIGEST_INVALID":
		return fault.ErrDigestMismatch
	case status == http.StatusBadRequest && code != "UNSUPPORTED":
		return fault.ErrInvalid
	case status >= 300 && status < 400:
		return fault.ErrTemporary // a proxy or a login page, not an answer of the registry
	}
	return fault.ErrUnsupported
}

// Clean makes a foreign text safe for one line of ours: printable, short, without control characters.
func Clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > maxErrorMessage {
		s = strings.ToValidUTF8(s[:maxErrorMessage], "") + "…"
	}
	return strings.TrimSpace(s)
}

// maxRetryAfter bounds the delay that a registry may request; more is a mistake or an attack.
const maxRetryAfter = 24 * time.Hour
