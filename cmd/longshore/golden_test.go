package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// leaves are the commands that do something, by their whole names.
func leaves(all []cmdline.Command) (out []string) {
	for _, c := range all {
		if len(c.Commands) == 0 {
			out = append(out, c.Name)
			continue
		}
		for _, below := range leaves(c.Commands) {
			out = append(out, c.Name+" "+below)
		}
	}
	return out
}

// The help of every command, and of every group of them.
func TestHelp(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}, server: &testenv.RegistryServer{Host: "nowhere"}}
	s.do(outcome.OK, "help")
	var out, errs bytes.Buffer
	for _, c := range testProgram(&out, &errs).app().Commands {
		s.do(outcome.OK, "help", c.Name)
		for _, below := range leaves(c.Commands) {
			s.do(outcome.OK, append([]string{"help", c.Name}, strings.Fields(below)...)...)
		}
	}
	s.golden(goldenDir(t))
}

// What commands say that no story above has in it.
func TestOutputs(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	private := testenv.Registry(t, testenv.DistributionHtpasswd)
	s.write("certs.d/private.example/hosts.toml", "server = \""+private.URL+"\"\n")
	s.env["DOCKER_CONFIG"], s.env["REGISTRY_AUTH_FILE"] = "docker", ""
	s.env["stdin"] = private.Password + "\n"
	s.do(outcome.OK, "login", "-u", private.Username, "--password-stdin", "private.example")
	s.do(outcome.OK, "login", "-o", "json", "-u", private.Username, "--password-stdin", "private.example")
	s.do(outcome.OK, "logout", "private.example")
	s.do(outcome.OK, "logout", "-o", "json", "private.example")
	s.do(outcome.OK, "key", "generate", "mine")
	s.do(outcome.OK, "key", "generate", "-o", "json", "other2")
	s.do(outcome.OK, "key", "show", "-o", "json", "release.pub")
	s.do(outcome.OK, "key", "public", "--key", "release.key")
	s.do(outcome.OK, "key", "public", "-o", "json", "--key", "release.key")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "bundle", "push", "-o", "json", "vision.yaml", host+"/plant/bundles/press:2026.11")
	s.do(outcome.OK, "app", "push", "-o", "json", "--channel", "stable", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "sign", "-o", "json", "--key", "release.key", monitor+":1.4.0")
	for range 2 {
		s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	}
	s.do(outcome.OK, "state", "rollback", "-o", "json", "-d", "press-07", "--to", "1", "--key", "release.key", states)
	s.do(outcome.OK, "fleet", "init", "-o", "json", "--registry", host+"/plant", "--component", "components/line-monitor:1.4.0", "--device", "press-07", "new")
	s.do(outcome.OK, "fleet", "prune", "-o", "json", "--keep", "2", "new")
	s.do(outcome.OK, "trust", "init", "-o", "json", "--signer", "release.pub", "--key", "release.pub", "--file", "policy.yaml", host+"/plant/trust")
	s.do(outcome.OK, "trust", "push", "-o", "json", "--key", "release.key", "policy.yaml", host+"/plant/trust")
	s.do(outcome.OK, "freshen", "--key", "root.key", states+":press-07")
	s.do(outcome.OK, "freshen", "-o", "json", "--key", "root.key", states+":press-07")
	s.do(outcome.OK, "policy", "schema")
	s.do(outcome.OK, "version")
	s.do(outcome.OK, "version", "-o", "json")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		s.do(outcome.OK, "completion", shell)
	}
	// Keys, their digests and times are new in every run, versions in every build.
	s.mask(
		`("(?:fingerprint|until|notAfter|signedAt|dated)": ")[^"]*`, "${1}NEW",
		`(Fingerprint: )\S+`, "${1}NEW",
		`([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)`, "TIME",
		`(\$ longshore version(?: -o json)?\n)(?s:.*?)(--- exit)`, "${1}VERSION\n${2}",
	)
	s.golden(golden)
}

// A rollout, looked at, halted, continued and undone.
func TestRolloutOutputs(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.waves(3, `rollout: {waves: [{name: canary, select: "device=press-0000", soak: 1h}, {name: rest, percent: 100}]}`)
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 6")
	s.env["LONGSHORE_ENDPOINT"] = newFloor(t, s, nil).url // no device reports anything there
	s.do(outcome.OK, "fleet", "publish", "--no-wait", "--key", "release.key", "waves")
	rollout := func(code int, what string, flags ...string) {
		key := []string{"--key", "release.key"}
		if what == "show" {
			key = []string{"--verify-key", "release.pub"}
		}
		s.do(code, append(append(append([]string{"fleet", "rollout", what}, flags...), key...), "waves")...)
	}
	rollout(outcome.Differs, "show")
	rollout(outcome.OK, "halt", "--reason", "not tonight")
	rollout(outcome.Refused, "show", "-o", "json")
	rollout(outcome.OK, "continue", "--no-wait")
	rollout(outcome.OK, "halt", "-o", "json")
	rollout(outcome.OK, "continue", "--no-wait", "-o", "json")
	rollout(outcome.OK, "undo", "-o", "json")
	rollout(outcome.Refused, "undo")                                                        // there is nothing more to undo
	s.do(outcome.Refused, "fleet", "publish", "--no-wait", "--key", "release.key", "waves") // the same again
	s.do(outcome.OK, "fleet", "publish", "--no-wait", "--again", "--annotation", "org.opencontainers.image.revision=4be2d1c", "--key", "release.key", "waves")
	s.do(outcome.OK, "fleet", "rollout", "history", "waves")
	s.do(outcome.OK, "fleet", "rollout", "history", "--limit", "1", "--verify-key", "release.pub", "-o", "json", "waves")
	s.do(outcome.Verification, "fleet", "rollout", "history", "--limit", "1", "--verify-key", "root.pub", "waves")
	s.do(outcome.OK, "fleet", "history", "waves")
	s.do(outcome.OK, "fleet", "history", "--limit", "1", "--verify-key", "release.pub", "-o", "json", "waves")
	s.do(outcome.Verification, "fleet", "history", "--limit", "1", "--verify-key", "root.pub", "waves")
	s.do(outcome.OK, "fleet", "history", "--select", "device=press-0001", "waves")
	s.do(outcome.NotFound, "fleet", "history", "--select", "device=press-09", "waves")
	s.mask(
		`([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]+)?Z)`, "TIME",
		`(rollouts:acme-plant",\s+"digest": ")sha256:[0-9a-f]+`, "${1}LEDGER",
		`("by": "|run by )[^"\n]*`, "${1}SOMEBODY",
		`("rollout": \d+,\s+"digest": "|rollouts@|referrer )sha256:[0-9a-f]+`, "${1}LEDGER",
	)
	s.golden(golden)
}

// mask replaces in the log what is new in every run: expressions, each with what it becomes.
func (s *shell) mask(pairs ...string) {
	log := s.log.String()
	for i := 0; i < len(pairs); i += 2 {
		log = regexp.MustCompile(pairs[i]).ReplaceAllString(log, pairs[i+1])
	}
	s.log.Reset()
	s.log.WriteString(log)
}

// noJSON are commands whose result is not ours to put into JSON: it is a script, a schema.
var noJSON = []string{"completion", "policy schema"}

// elsewhereRead are commands of which a test reads the output piece by piece: there is a new key, or a new time, in every run.
var elsewhereRead = []string{"fleet watch", "trusted-root show"}

// Every command has its output in a golden file, as text and as JSON.
func TestEveryOutputIsGolden(t *testing.T) {
	var all bytes.Buffer
	files, err := filepath.Glob("testdata/golden/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		all.Write(mustRead(t, name))
	}
	var out, errs bytes.Buffer
	for _, name := range leaves(testProgram(&out, &errs).app().Commands) {
		if slices.Contains(elsewhereRead, name) {
			continue
		}
		typed := regexp.MustCompile(`(?m)^\$ longshore `+name+`( .*)?$`).FindAllString(all.String(), -1)
		asJSON := func(line string) bool { return strings.Contains(line, "-o json") }
		if !slices.ContainsFunc(typed, func(l string) bool { return !asJSON(l) }) {
			t.Errorf("%s: no golden file has its text", name)
		}
		if !slices.ContainsFunc(typed, asJSON) && !slices.Contains(noJSON, name) {
			t.Errorf("%s: no golden file has its JSON", name)
		}
		if !strings.Contains(all.String(), "$ longshore help "+name+"\n") {
			t.Errorf("%s: no golden file has its help", name)
		}
	}
}
