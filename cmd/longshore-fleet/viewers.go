package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
	"github.com/longshore-dev/longshore/fleet/status"
)

const maxPassword = 4 << 10

// viewers decides who may look at the page, /fleet/v1 and /metrics: who has the password; without one who is on this
// machine; everyone only where that is asked for.
func viewers(c *cmdline.Context) (func(http.Handler) http.Handler, error) {
	file, anonymous := c.String("viewer-password-file"), c.Bool("anonymous-viewers")
	switch {
	case file != "" && anonymous:
		return nil, outcome.Usagef("", "--viewer-password-file and --anonymous-viewers exclude each other")
	case anonymous:
		return func(next http.Handler) http.Handler { return next }, nil
	case file != "":
		sum, err := viewerPassword(file)
		return func(next http.Handler) http.Handler { return withPassword(sum, next) }, err
	case !serving.Loopback(c.String("listen")):
		err := outcome.Usagef("", "%s is reached by others, and without a password every one of them can look at the fleet", c.String("listen"))
		return nil, fault.WithHint(err, "give --viewer-password-file FILE; or --anonymous-viewers if everyone may look")
	}
	return fromHere, nil
}

func viewerPassword(file string) (sum [sha256.Size]byte, err error) {
	data, err := bounded.File(os.Open, file, maxPassword)
	if err != nil {
		return sum, outcome.Usagef("", "read the viewer password: %v", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return sum, outcome.Usagef("", "read the viewer password: %s is empty", file)
	}
	return sha256.Sum256([]byte(text)), nil
}

func withPassword(password [sha256.Size]byte, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		sum := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(sum[:], password[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="longshore-fleet", charset="UTF-8"`)
			status.Refuse(w, r, http.StatusUnauthorized, "the viewer password is needed")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromHere serves only requests that were made for this machine. A server on a loopback address is reached from elsewhere
// all the same: by a proxy beside it, and by pages of other sites whose name resolves to 127.0.0.1 (DNS rebinding). Only a
// proxy that adds one of these headers, or keeps the host name, is recognised: nginx with a bare proxy_pass and TCP proxies do
// neither, so that behind a proxy a password is needed.
func fromHere(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, passedOn := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"} {
			if r.Header.Get(passedOn) != "" {
				status.Refuse(w, r, http.StatusForbidden, "the request came through a proxy: start longshore-fleet with --viewer-password-file, or with --anonymous-viewers")
				return
			}
		}
		host := r.Host
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "0")
		}
		if !serving.Loopback(host) {
			status.Refuse(w, r, http.StatusForbidden, "without a viewer password only this machine may look, by the name localhost or a loopback address")
			return
		}
		next.ServeHTTP(w, r)
	})
}
