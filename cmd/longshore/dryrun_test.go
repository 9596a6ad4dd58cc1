package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A rehearsal tells the digest that the push then has, writes nothing, and tells what the push would be refused for.
func TestDryRun(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", host+"/plant/components/base:1.4.0")
	writes := func() int {
		n := 0
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			n += len(s.server.Faults.Requests(method, ""))
		}
		return n
	}
	for _, args := range [][]string{
		{"component", "push", "./line-monitor", monitor + ":1.4.0"},
		{"app", "push", "--channel", "stable", "./app", host + "/plant/apps/line"},
		{"bundle", "push", "vision.yaml", host + "/plant/bundles/press:1"},
		{"state", "push", "-d", "press-07", "--key", "release.key", "--component", host + "/plant/components/base:1.4.0", states},
	} {
		s.server.Faults.Forget()
		would := s.do(outcome.OK, append(args, "--dry-run", "-q")...)
		text := s.do(outcome.OK, append(args, "--dry-run")...)
		if n := writes(); n > 0 || !strings.Contains(text, "nothing was pushed") || !strings.Contains(text, strings.TrimSpace(would)) {
			t.Errorf("%v: %d requests that write\n%s", args, n, text)
		}
		if is := s.do(outcome.OK, append(args, "-q")...); is != would {
			t.Errorf("%v: %s, rehearsed was %s", args, is, would)
		}
	}
	s.write("line-monitor/config/limits.json", `{"max": 12}`)
	s.do(outcome.Refused, "component", "push", "--dry-run", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "component", "push", "--dry-run", "--overwrite", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "--dry-run", "-d", "press-09", "--empty", states) // without a key, too
}
