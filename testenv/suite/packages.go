package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// testPackage is a package with tests, as go list describes it.
type testPackage struct {
	ImportPath                string
	Dir                       string
	Module                    struct{ Path string }
	GoFiles                   []string // without tests
	TestGoFiles, XTestGoFiles []string
}

// folder is the package's folder below the root of its module: "registry/release".
func (p testPackage) folder() string {
	return strings.TrimPrefix(p.ImportPath, p.Module.Path+"/")
}

// listPackages lists the packages with tests that the patterns name; nil: all.
func listPackages(ctx context.Context, root string, patterns []string) ([]testPackage, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,Module,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir = root
	text, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	var all []testPackage
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p testPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no package with tests matches %s", strings.Join(patterns, " "))
	}
	return all, nil
}

// concurrent reports whether the code of the package, without its tests, may share data between goroutines: it has a go statement,
// or imports sync or golang.org/x/sync. Tests of other packages gain nothing from the race detector. A package that has only tests is
// judged by them. It passes over a file with a syntax error: go test reports it.
func (p testPackage) concurrent() bool {
	files := p.GoFiles
	if len(files) == 0 {
		files = p.TestGoFiles
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		found := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			path, _ := strconv.Unquote(i.Path.Value)
			return path == "sync" || strings.HasPrefix(path, "sync/") || strings.HasPrefix(path, "golang.org/x/sync/")
		})
		ast.Inspect(file, func(n ast.Node) bool {
			_, starts := n.(*ast.GoStmt)
			found = found || starts
			return !found
		})
		if found {
			return true
		}
	}
	return false
}

// outside reports whether the tests of a package run no code of our programs in their own process: those of testenv start programs, or
// test what is for tests; only scenarios run the agent within.
func outside(folder string) bool {
	return (folder == "testenv" || strings.HasPrefix(folder, "testenv/")) && folder != "testenv/scenario"
}

// typed are packages whose tests type command lines, one at a time: the detector makes them four times slower, and finds something only
// in the tests that are named here, of commands that do several things at once. What they call has tests of its own.
var typed = map[string]string{
	"cmd/longshore": "^(TestConcurrency|TestExport|TestFleet|TestFleetPrune|TestFleetRace|TestFleetRollout|TestFreshen|TestImportIsCutOff|TestMirror|" +
		"TestMirrorBesideSitePrune|TestMirrorIsTakenUp|TestPrune|TestProgress|TestReceipt|TestReportsBesideStates|TestRollback|TestSeenByTwo|TestServe|" +
		"TestSitePruneBesideMirror|TestStateProposalByTwoAtOnce|TestStatePruneBesideOthers|TestVerifyChain)$",
}

// repeated are tests that go the same way through an agent again and again: days and months pass in a bubble, or the agent is killed at
// each of its steps, on a runtime in memory. The detector makes them three to four times slower and sees nothing in them that other
// tests of these packages, with the detector, do not show it: an hour of an agent, and the kills on real containers.
var repeated = map[string]string{
	"agent": "^(TestAYearWithAClockThatJumps|TestAutomaticApprovalCountsTheTimeThatPassed|TestChangesAreMadeInTheirWindow|" +
		"TestEverythingIsReportedWithinAnInterval|TestPollsWithJitter|TestSevenDaysWithoutTheEndpoint)$",
	"agent/agenttest": "^(TestKills|TestKillsOfRollbacks|TestKillsOfUpdates|TestManagerAwayForAMonth|TestManagerKills|TestManagerRefusals|TestRefusals)$",
}

// command is one go test command.
type command struct {
	flags    []string
	packages []testPackage
}

// name says what the command tests, for people.
func (c command) name() string {
	what := c.packages[0].folder()
	if n := len(c.packages); n > 1 {
		what = fmt.Sprintf("%d packages", n)
	}
	if slices.Contains(c.flags, "-race") {
		what += ", with the race detector"
	}
	return what
}

// longest are the packages whose tests take longest, in that order: each has a command of its own, so that two of them can run at a time
// and the last to start are the shorter ones.
var longest = []string{
	"testenv/attack", "testenv/approve", "cmd/longshore", "agent/containerd", "testenv/scenario", "agent/agenttest", "agent", "testenv/docs",
	"cmd/longshore-agent", "registry", "testenv/demo", "testenv/site", "agent/network", "testenv/soak", "testenv/conformance", "testenv/enroll",
	"testenv/packaging", "fleet", "fleet/rollout", "signing/sign", "cmd/longshore-fleet", "fleet/desired", "signing/trust", "testenv/conform",
}

// split returns the commands that test packages, with the race detector where it can find something, in the order in which they start.
// All packages that are not among the longest share two commands, which together take long: they come first.
func split(packages []testPackage, o Options) []command {
	race, plain := command{flags: raceArgs()}, command{flags: []string{"-p", "1"}}
	alone := make([][]command, len(longest))
	for _, p := range packages {
		some, long := typed[p.folder()], repeated[p.folder()]
		shared := &plain
		if p.concurrent() && !o.NoRace && !outside(p.folder()) && (some == "" || o.Run == "") {
			shared = &race
		}
		i, only := slices.Index(longest, p.folder()), []testPackage{p}
		switch {
		case i < 0:
			shared.packages = append(shared.packages, p)
		case some != "" && shared == &race:
			alone[i] = []command{{append(raceArgs(), "-run", some), only}, {[]string{"-skip", some}, only}}
		case long != "" && shared == &race && o.Run == "":
			alone[i] = []command{{append(raceArgs(), "-skip", long), only}, {[]string{"-run", long}, only}}
		default:
			alone[i] = []command{{shared.flags, only}}
		}
	}
	all := append([]command{race, plain}, slices.Concat(alone...)...)
	return slices.DeleteFunc(all, func(c command) bool { return len(c.packages) == 0 })
}
