package main

import (
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A file that a flag or its variable names, and that cannot be used, is the flag's fault: told once, before anything is asked.
func TestFilesOfFlags(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.write("words.pem", "not a certificate")
	s.write("half.json", "{\n  \"auths\": {\n")
	s.write("kind.json", "{\n  \"auths\": 7, \"credsStore\": \"\"}")
	s.write("comma.json", "{\"auths\": {}\n \"credHelpers\": {}}")
	push := []string{"component", "push", "./line-monitor", monitor + ":1.4.0"}
	for _, tc := range []struct {
		flag, file string
		code       int
		want       string
	}{
		{"--ca-file", "none.pem", outcome.NotFound, "longshore: --ca-file: CA file none.pem: not found\n"},
		{"--ca-file", "words.pem", outcome.Misused, "longshore: --ca-file: CA file words.pem holds no PEM certificate: invalid\n  hint: put the certificate of the registry's authority there, in PEM\n"},
		{"--ca-file", ".", outcome.Misused, "longshore: --ca-file: CA file .: is a directory: invalid\n"},
		{"--cert-file", "none.pem", outcome.NotFound, "longshore: --cert-file: client certificate none.pem: not found\n"},
		{"--registry-config", "none.json", outcome.NotFound, "longshore: --registry-config: credentials file none.json: no such file or directory\n"},
		{"--registry-config", "half.json", outcome.Misused, "longshore: --registry-config: credentials file half.json:2:13: unexpected end of JSON input: configuration invalid\n"},
		{"--registry-config", "kind.json", outcome.Misused, "longshore: --registry-config: credentials file kind.json:2:12: \"auths\" cannot be a JSON number: configuration invalid\n"},
		{"--registry-config", "comma.json", outcome.Misused, "longshore: --registry-config: credentials file comma.json:2:2: invalid character '\"' after object key:value pair: configuration invalid\n"},
	} {
		s.server.Faults.Forget()
		args := append(push, tc.flag, tc.file)
		if tc.flag == "--cert-file" {
			args = append(args, "--key-file", "words.pem")
		}
		code, _, stderr := s.try(args...)
		if code != tc.code || stderr != tc.want || len(s.server.Faults.Requests("", "")) > 0 {
			t.Errorf("%s %s: exit %d, want %d\n%s want\n%s", tc.flag, tc.file, code, tc.code, stderr, tc.want)
		}
	}
	s.env["LONGSHORE_CA_FILE"] = "none.pem"
	s.refuses(outcome.NotFound, []string{"longshore: LONGSHORE_CA_FILE: CA file none.pem: not found"}, push...)
	delete(s.env, "LONGSHORE_CA_FILE")
	// Login makes its file, and what is looked for at the usual places may be missing.
	s.do(outcome.OK, "login", "--registry-config", "made.json", "-u", "anna", "-p", "secret", host)
	s.do(outcome.OK, append(push, "-q", "--registry-config", "made.json")...)
	if _, err := os.Stat(".docker/config.json"); err == nil {
		t.Error("the test means nothing: there are credentials at home")
	}
}

// A registry on this machine is spoken to without TLS, unless somebody says otherwise.
func TestLoopback(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	list := []string{"app", "list", s.server.Host + "/library/caddy"}
	s.do(outcome.OK, list...)
	s.refuses(outcome.Misused, []string{"it speaks plain HTTP, HTTPS was expected"}, append(list, "--plain-http=false")...)
	s.env["LONGSHORE_PLAIN_HTTP"] = "false"
	s.refuses(outcome.Misused, []string{"it speaks plain HTTP, HTTPS was expected"}, list...)
	s.do(outcome.OK, append(list, "--plain-http")...)
	name := strings.Replace(list[2], "127.0.0.1", "localhost", 1)
	s.refuses(outcome.Misused, []string{"it speaks plain HTTP, HTTPS was expected"}, "app", "list", name)
}
