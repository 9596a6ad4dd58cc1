package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var listed = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*)  `)

// commandsOf are the commands that a help lists, but help itself.
func commandsOf(help string) (out []string) {
	_, below, _ := strings.Cut(help, "\nCommands:\n")
	below, _, _ = strings.Cut(below, "\n\n")
	for _, m := range listed.FindAllStringSubmatch(below, -1) {
		if m[1] != "help" {
			out = append(out, m[1])
		}
	}
	return out
}

// The help of every command is as it was looked at last.
func TestHelp(t *testing.T) {
	code, first, _ := command(t, "--help")
	all := commandsOf(first)
	if code != 0 || len(all) < 15 {
		t.Fatalf("--help = %d, %q\n%s", code, all, first)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "$ longshore-agent --help\n%s\n", first)
	for _, name := range all {
		code, out, errs := command(t, name, "--help")
		if code != 0 || out == "" || errs != "" {
			t.Errorf("%s --help = %d\n%s", name, code, errs)
		}
		fmt.Fprintf(&b, "$ longshore-agent %s --help\n%s\n", name, out)
	}
	golden(t, "help.golden", b.Bytes())
}

// outputs are the commands whose result does not depend on the machine, as text and in the other formats that they have.
var outputs = []string{
	"status", "status -o json", "status -o yaml", "sync", "sync -o json", "ps -o json", "ps -o yaml", "stats --no-stream -o json", "events", "verify-image --help",
	"restart", "restart shop/db line/web-1", "restart nothing",
	"changes", "changes -o json", "approve vision", "approve", "approve --all", "reject vision", "reject vision --reason noise", "postpone vision", "postpone vision --for 8h", "postpone vision --for 2d",
	"postpone vision --until tomorrow", "postpone vision --until 2026-12-01",
	"rollback", "rollback --to 41 --reason noise -o json", "release", "release -o json",
	"volumes list", "volumes list -o json", "volumes remove shop/orders line/data gone", "volumes remove",
	"enroll", "enroll http://fleet.acme.example", "enroll https://fleet.acme.example:8443", "check-config", "unit", "containerd-config", "completion bash", "completion zsh", "completion fish",
}

// noOutput are commands that no golden file shows: what they say is the machine's, the container's, or the version's.
var noOutput = []string{"init", "run", "capabilities", "key", "exec", "version", "verify-image", "panel-pin"}

// changing is what follows the clock.
var changing = regexp.MustCompile(`("?(?:startedAt|exitedAt|now|since)"?: "?)[0-9][0-9T:.Z+-]*`)

// Every command has its output in a golden file.
func TestOutputs(t *testing.T) {
	_, file := fakeAgent(t)
	var b bytes.Buffer
	for _, line := range outputs {
		args := strings.Fields(line)
		if !slices.Contains([]string{"unit", "containerd-config", "completion", "enroll"}, args[0]) && !slices.Contains(args, "--help") {
			args = append(args, "--config", file)
		}
		code, out, errs := command(t, args...)
		out = strings.ReplaceAll(changing.ReplaceAllString(out, "${1}NOW"), filepath.Dir(file), "/etc/longshore")
		fmt.Fprintf(&b, "$ longshore-agent %s\n%s%s--- exit %d\n\n", line, out, strings.ReplaceAll(errs, filepath.Dir(file), "/etc/longshore"), code)
	}
	golden(t, "outputs.golden", b.Bytes())
	_, help, _ := command(t, "--help")
	for _, name := range commandsOf(help) {
		there := slices.ContainsFunc(outputs, func(l string) bool { return strings.Fields(l)[0] == name })
		if _, err := os.Stat(filepath.Join("testdata", name+".golden")); err == nil {
			there = true
		}
		if !there && !slices.Contains(noOutput, name) {
			t.Errorf("%s: no golden file has its output", name)
		}
	}
}
