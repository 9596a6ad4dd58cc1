package suite

import (
	"bytes"
	"cmp"
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
// or imports sync or golang.org/x/sync. Tests of other packages gain nothing from the race detector.
func (p testPackage) concurrent() (bool, error) {
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
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
			return true, nil
		}
	}
	return false, nil
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

// command is one go test command.
type command struct {
	flags    []string
	packages []testPackage
}

// split divides packages into those whose tests run with the race detector and the others, each in the order in which they start.
func split(packages []testPackage, o Options) (race, plain []command, err error) {
	with, without := command{flags: raceArgs()}, command{flags: []string{"-p", "1"}}
	for _, p := range packages {
		concurrent, err := p.concurrent()
		if err != nil {
			return nil, nil, err
		}
		some := typed[p.folder()]
		switch {
		case o.NoRace || !concurrent || outside(p.folder()) || some != "" && o.Run != "":
			without.packages = append(without.packages, p)
		case some != "":
			race = append(race, command{append(raceArgs(), "-run", some), []testPackage{p}})
			plain = append(plain, command{[]string{"-skip", some}, []testPackage{p}})
		default:
			with.packages = append(with.packages, p)
		}
	}
	order(with.packages)
	order(without.packages)
	return append(race, with), append(plain, without), nil
}

// longest are the packages whose tests take longest, in that order.
var longest = []string{
	"cmd/longshore", "agent/containerd", "testenv/attack", "registry", "testenv/docs", "testenv/scenario", "agent/network", "testenv/site",
	"agent/agenttest", "cmd/longshore-agent", "fleet/rollout", "cmd/longshore-fleet", "testenv/soak", "testenv/conformance", "testenv/packaging",
}

// order puts the packages that take longest first, so that none of them begins when all others have ended.
func order(packages []testPackage) {
	place := func(p testPackage) int {
		if i := slices.Index(longest, p.folder()); i >= 0 {
			return i
		}
		return len(longest)
	}
	slices.SortStableFunc(packages, func(a, b testPackage) int { return cmp.Compare(place(a), place(b)) })
}
