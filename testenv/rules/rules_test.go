package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/longshore-dev/longshore"

// mayImport says which of our folders a folder may import; a folder stands for those below it that have no line of their
// own, on both sides. Everything may import what is below its own line. A folder without a line is an error.
var mayImport = map[string][]string{
	"artifacts":          {},
	"registry":           {"artifacts"},
	"registry/release":   {"artifacts", "registry"},
	"signing":            {"artifacts"},
	"signing/trust":      {"artifacts", "signing", "signing/keyless"},
	"signing/keyless":    {"artifacts", "signing"},
	"signing/sign":       {"artifacts", "signing", "signing/token"},
	"signing/token":      {"artifacts"},
	"signing/audit":      {"artifacts", "signing", "signing/trust"},
	"signing/filebundle": {"artifacts", "signing"},
	"signing/current":    {"artifacts", "signing"},
	"identity":           {"artifacts"},
	"identity/files":     {"artifacts", "identity"},
	"identity/ca":        {"artifacts", "identity"},
	"identity/enroll":    {"artifacts", "identity", "identity/files"},
	"agent":              {"artifacts", "agent/approval", "agent/clock", "agent/codes", "agent/workload", "agent/store", "agent/intake", "agent/plan", "agent/status", "agent/retry", "agent/outbox", "agent/currentstate", "agent/loading", "agent/window"},
	"agent/intake":       {"artifacts", "agent/clock", "agent/codes", "agent/compose", "agent/plan", "agent/status", "agent/store", "agent/workload"},
	"agent/config":       {"artifacts", "agent/approval", "agent/plan", "signing/token"},
	"agent/plan":         {"artifacts", "agent/retry", "agent/codes", "agent/workload", "agent/store"},
	"agent/status":       {"artifacts", "agent/codes", "agent/plan", "agent/store", "agent/workload"},
	"agent/approval":     {"artifacts", "agent/codes", "agent/plan", "agent/store", "agent/workload"},
	"agent/clock":        {},
	"agent/retry":        {"artifacts"},
	"agent/loading":      {"artifacts", "agent/codes", "agent/plan", "agent/retry", "agent/status", "agent/workload"},
	"agent/window":       {"artifacts", "agent/clock", "agent/status"},
	"agent/outbox":       {"artifacts", "agent/codes", "agent/retry", "agent/status", "agent/store"},
	"agent/currentstate": {"artifacts", "agent/codes", "agent/plan", "agent/retry", "agent/status", "agent/store", "agent/workload"},
	"agent/codes":        {"artifacts"},
	"agent/workload":     {"artifacts"},
	"agent/compose":      {"artifacts", "agent/workload"},
	"agent/store":        {"artifacts", "agent", "agent/clock", "agent/codes", "agent/workload"},
	"agent/admission":    {"artifacts", "agent/workload"},
	"agent/containerd":   {"artifacts", "agent", "agent/workload", "agent/admission", "agent/containerd/*"},
	"agent/network":      {"artifacts", "agent/workload"},
	"agent/firstprocess": {},
	"agent/manager":      {"artifacts", "agent/store"},
	"agent/report":       {"artifacts", "agent/currentstate", "agent/report/tpm", "identity/files", "signing/token"},
	"agent/report/tpm":   {"artifacts"},
	"agent/control":      {"artifacts", "agent", "agent/codes", "agent/status", "agent/store", "agent/workload", "agent/metrics"},
	"agent/panel":        {"artifacts", "agent", "agent/codes", "agent/status", "agent/store", "agent/workload"},
	"agent/wipe":         {"artifacts", "agent/workload"},
	"agent/metrics":      {"agent/codes", "agent/plan", "agent/status", "agent/workload"},
	"agent/trace":        {"artifacts", "agent/status", "agent/store"},
	"fleet":              {"artifacts", "registry/release"},
	"fleet/rollout":      {"artifacts", "fleet", "registry/release"},
	"fleet/endpoint":     {"artifacts", "fleet", "fleet/rollout"},
	"fleet/enroll":       {"artifacts", "fleet", "identity", "identity/enroll"},
	"fleet/reported":     {"artifacts", "fleet", "fleet/rollout"},
	"site":               {"artifacts", "registry", "registry/release"},
	"cmd":                {"site", "artifacts", "registry", "registry/*", "signing", "agent", "agent/*", "agent/containerd/*", "fleet", "fleet/*", "signing/*", "identity", "identity/*"},
	"cmd/testenv":        {"testenv", "cmd"},
	"testenv":            {"artifacts", "registry", "registry/*", "signing", "agent", "agent/*", "agent/containerd/*", "fleet", "signing/*", "identity", "identity/*"},
	"testenv/images":     {}, // what runs in test containers: standard library only
	"testenv/rules":      {},

	"identity/workloadapi": {"artifacts", "identity"},
	"identity/discovery":   {"artifacts", "identity", "identity/enroll"},

	// The rooms of the runtime; those without imports of ours are its floor.
	"agent/containerd/apparmor":    {},
	"agent/containerd/cgroup":      {"agent/workload", "agent/containerd/paths"},
	"agent/containerd/claim":       {"artifacts", "agent/containerd/failure", "agent/containerd/owned", "agent/containerd/process"},
	"agent/containerd/confinement": {"artifacts", "agent/workload", "agent/containerd/apparmor", "agent/containerd/failure", "agent/containerd/features"},
	"agent/containerd/daemon":      {},
	"agent/containerd/deadline":    {"artifacts"},
	"agent/containerd/devices":     {"artifacts", "agent/workload", "agent/containerd/failure"},
	"agent/containerd/failure":     {"artifacts"},
	"agent/containerd/features":    {"artifacts", "agent/workload", "agent/containerd/apparmor", "agent/containerd/cgroup", "agent/containerd/failure", "agent/containerd/paths", "agent/containerd/users"},
	"agent/containerd/guard":       {"artifacts", "agent/workload", "agent/containerd/confinement"},
	"agent/containerd/images":      {"artifacts", "agent/workload", "agent/containerd/deadline", "agent/containerd/failure", "agent/containerd/owned"},
	"agent/containerd/logs":        {"agent/workload", "agent/containerd/paths", "agent/containerd/process"},
	"agent/containerd/owned":       {},
	"agent/containerd/paths":       {"artifacts"},
	"agent/containerd/probe":       {"artifacts", "agent/workload", "agent/containerd/failure", "agent/containerd/process"},
	"agent/containerd/process":     {},
	"agent/containerd/records":     {"artifacts", "agent/workload", "agent/containerd/failure", "agent/containerd/owned"},
	"agent/containerd/runspec":     {"artifacts", "agent/workload", "agent/containerd/confinement", "agent/containerd/devices", "agent/containerd/failure", "agent/containerd/features", "agent/containerd/guard", "agent/containerd/paths", "agent/containerd/users"},
	"agent/containerd/tasks":       {"artifacts", "agent", "agent/containerd/deadline", "agent/containerd/failure", "agent/containerd/paths", "agent/containerd/process"},
	"agent/containerd/usage":       {"artifacts", "agent/workload"},
	"agent/containerd/users":       {"artifacts", "agent/workload", "agent/containerd/failure", "agent/containerd/process"},
	"agent/containerd/volumes":     {"artifacts", "agent/workload", "agent/containerd/failure", "agent/containerd/guard", "agent/containerd/owned", "agent/containerd/paths", "agent/containerd/process", "agent/containerd/users"},
}

// testsMayImport comes on top of mayImport in _test.go files. A suite that runs on fakes and on the real thing lives in the
// room of the port and so needs the adapters there.
var testsMayImport = map[string][]string{
	"registry":           {"testenv", "registry/*"},
	"signing":            {"testenv", "registry", "signing/*"}, // real transport under the real signature
	"agent":              {"testenv", "registry", "signing", "signing/*", "agent/*", "agent/containerd/*"},
	"agent/*":            {"testenv", "registry", "agent", "agent/*", "agent/containerd/*"},
	"agent/containerd/*": {"testenv"},
	"agent/report/tpm":   {"testenv"},
	"fleet":              {"testenv", "fleet/rollout"},
	"fleet/enroll":       {"identity", "identity/*"},
	"identity":           {"testenv", "identity/*"},
	"cmd":                {"testenv"},
	"testenv":            {},
}

// onlyIn says in which folders a library may be imported. In tests and in testenv every library may be, except by pure
// code.
var onlyIn = map[string][]string{
	"oras.land/oras-go":                          {"registry"},
	"github.com/sigstore":                        {"signing"},
	"github.com/secure-systems-lab":              {"signing"},
	"github.com/containerd/containerd":           {"agent/containerd"},
	"github.com/containernetworking":             {"agent/network"},
	"github.com/vishvananda/netlink":             {"agent/network"},
	"github.com/vishvananda/netns":               {"agent/network"},
	"github.com/google/nftables":                 {"agent/network"},
	"github.com/compose-spec/compose-go":         {"artifacts/composefile", "agent/compose"},
	"github.com/robfig/cron":                     {"artifacts/schedule"},
	"go.etcd.io/bbolt":                           {"agent/store"},
	"database/sql":                               {"fleet/store"},
	"modernc.org/sqlite":                         {"fleet/store"},
	"github.com/pressly/goose":                   {"fleet/store"},
	"github.com/spiffe/go-spiffe":                {"identity"},
	"github.com/spf13/pflag":                     {"cmd"},
	"maragu.dev/gomponents":                      {"agent/panel", "fleet/web"},
	"github.com/vbauerster/mpb":                  {"cmd"},
	"rsc.io/qr":                                  {"cmd"},
	"github.com/google/go-containerregistry":     {},
	"go.yaml.in/yaml":                            {"artifacts/strict", "artifacts/composefile"}, // artifacts/emit writes it
	"github.com/distribution/distribution":       {},
	"cuelabs.dev":                                {"site/serve"},
	"github.com/google/go-tpm":                   {"agent/report/tpm"},
	"github.com/ThalesIgnite/crypto11":           {"signing/token"},
	"github.com/miekg/pkcs11":                    {"signing/token"},
	"testing":                                    {},
	"os/exec":                                    {"cmd/longshore", "registry/internal/auths", "agent/containerd/apparmor"}, // git; credential helpers; apparmor_parser
	"github.com/longshore-dev/longshore/testenv": {"cmd/testenv"},
	// Signing, and explaining why something is not trusted, are for the desk: a device does neither.
	"github.com/sigstore/cosign":                       {"signing/sign"},
	"github.com/longshore-dev/longshore/signing/sign":  {"cmd/longshore", "cmd/longshore-fleet", "signing/sign"}, // a manager signs certificates with a remote key
	"github.com/longshore-dev/longshore/signing/audit": {"cmd/longshore"},
}

// suites are packages of tests that a room gives to those who implement its ports: test code, though not in _test.go files.
var suites = []string{"agent/runtimetest", "agent/agenttest", "signing/signingtest", "signing/keyless/keylesstest", "fleet/fleettest", "fleet/enroll/enrolltest", "fleet/enroll/harbortest", "identity/identitytest", "signing/sign/remotekey/remotekeytest"}

// pure folders compute: their files come in as fs.FS, their time as a value.
var pure = []string{"artifacts", "agent/workload", "agent/compose", "agent/network/ipam", "agent/admission", "agent/clock", "agent/retry", "agent/plan", "agent/approval"}

// impure is what pure code may not import.
var impure = []string{"os", "net", "net/http", "os/exec", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "unsafe", "golang.org/x/sys"}

// calls may be made in programs and in testenv only: elsewhere they come in as parameters.
var calls = map[string][]string{
	"context":  {"Background", "TODO"},
	"time":     {"Now", "Since", "Until"},
	"os":       {"Getenv", "LookupEnv", "Environ", "Exit", "Stdout", "Stderr", "Stdin", "Args"},
	"net/http": {"DefaultClient", "DefaultTransport", "Get", "Post", "Head", "DefaultServeMux"},
	"fmt":      {"Print", "Printf", "Println"},
	"log":      {"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "Panic"},
	"log/slog": {"Default", "SetDefault", "Info", "Warn", "Error", "Debug"},
}

// Limits of length, in lines.
const (
	maxFile     = 600
	maxTestFile = 1000
	maxFunction = 100
	maxReadme   = 150
)

// forbidden names say nothing about what is in a folder.
var forbidden = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "pkg", "consts", "shared", "lib"}

// leaks lists the folders whose tests must find every goroutine ended.
var leaks = []string{"registry", "agent", "agent/containerd", "agent/containerd/logs", "agent/containerd/tasks", "agent/control", "agent/network", "agent/manager", "agent/panel", "agent/report/tpm", "agent/trace", "testenv"}

// source is one parsed Go file.
type source struct {
	path string // from the top, with slashes
	dir  string
	test bool // a _test.go file, or in a suite
	file *ast.File
	set  *token.FileSet
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		row, ok := line(keys(mayImport), s.dir)
		if !ok {
			t.Errorf("%s: folder has no line in mayImport", s.path)
			continue
		}
		for _, spec := range s.file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			at := s.set.Position(spec.Pos())
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
				if !s.allowed(row, ours) {
					t.Errorf("%s:%d: %s may not import %s", s.path, at.Line, row, ours)
				}
			}
			for library, owners := range onlyIn {
				if within(library, imported) && !s.test && !within("testenv", s.dir) && !slices.ContainsFunc(owners, func(o string) bool { return within(o, s.dir) }) {
					t.Errorf("%s:%d: %s belongs to %s", s.path, at.Line, imported, owners)
				}
			}
			if isPure := slices.ContainsFunc(pure, func(p string) bool { return within(p, s.dir) }); isPure && !s.test && slices.ContainsFunc(impure, func(i string) bool { return i == imported || strings.Contains(i, ".") && within(i, imported) }) {
				t.Errorf("%s:%d: pure code imports %s", s.path, at.Line, imported)
			}
		}
	}
}

// allowed reports whether a file in the folder of row may import one of our packages.
func (s source) allowed(row, ours string) bool {
	target, ok := line(keys(mayImport), ours)
	if !ok || target == row && within(row, ours) {
		return true // a missing line is reported once, with the folder
	}
	list := mayImport[row]
	if row == "cmd/testenv" {
		list = append(slices.Clone(list), mayImport["cmd"]...)
	}
	if s.test {
		for pattern, more := range testsMayImport {
			if matches(pattern, row) || pattern == top(row) && pattern != "agent" {
				list = append(slices.Clone(list), more...)
			}
		}
	}
	return slices.ContainsFunc(list, func(allowed string) bool { return matches(allowed, target) })
}

// matches compares a row with a name or a pattern like "agent/*".
func matches(pattern, row string) bool {
	ok, err := path.Match(pattern, row)
	return err == nil && ok
}

func top(dir string) string {
	first, _, _ := strings.Cut(dir, "/")
	return first
}

func TestCalls(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || top(s.dir) == "cmd" || top(s.dir) == "testenv" {
			continue
		}
		names := map[string]string{} // local name to import path
		for _, spec := range s.file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			name := path.Base(imported)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = imported
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s: func init: work at start belongs to programs", s.set.Position(n.Pos()))
			}
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains(calls[names[id.Name]], sel.Sel.Name) {
				t.Errorf("%s: %s.%s: let the caller pass it in", s.set.Position(n.Pos()), id.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

// TestExpressions keeps packages from compiling regular expressions when a program starts, and compiles what they leave for later.
func TestExpressions(t *testing.T) {
	count := 0
	for _, s := range sources(t) {
		if s.test || top(s.dir) == "testenv" || s.dir == "cmd/testenv" {
			continue
		}
		for _, d := range s.file.Decls {
			if v, ok := d.(*ast.GenDecl); ok && v.Tok == token.VAR {
				ast.Inspect(v, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok && types.ExprString(call.Fun) == "regexp.MustCompile" {
						t.Errorf("%s: is compiled whenever a program starts: strict.Expression compiles it at its first use", s.set.Position(n.Pos()))
					}
					return true
				})
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || !slices.Contains([]string{"strict.Expression", "strict.Short"}, types.ExprString(call.Fun)) {
				return true
			}
			count++
			text, ok := s.text(call.Args[0])
			if _, err := regexp.Compile(text); err != nil || !ok {
				t.Errorf("%s: cannot be compiled: %v", s.set.Position(n.Pos()), err)
			}
			return true
		})
	}
	if count == 0 {
		t.Error("no expression was found")
	}
}

// text is the value of a string of literals and of constants of the same file.
func (s source) text(x ast.Expr) (string, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := s.text(x.X)
		right, also := s.text(x.Y)
		return left + right, ok && also
	case *ast.Ident:
		for _, d := range s.file.Decls {
			if c, ok := d.(*ast.GenDecl); ok && c.Tok == token.CONST {
				for _, spec := range c.Specs {
					if v := spec.(*ast.ValueSpec); v.Names[0].Name == x.Name && len(v.Values) == 1 {
						return s.text(v.Values[0])
					}
				}
			}
		}
	}
	return "", false
}

func TestLengths(t *testing.T) {
	for _, s := range sources(t) {
		limit := maxFile
		if strings.HasSuffix(s.path, "_test.go") {
			limit = maxTestFile
		}
		if n := s.set.File(s.file.Pos()).LineCount(); n > limit {
			t.Errorf("%s: %d lines, at most %d", s.path, n, limit)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test {
				continue
			}
			if n := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line; n > maxFunction {
				t.Errorf("%s: func %s has %d lines, at most %d", s.path, f.Name.Name, n, maxFunction)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	comments, packages := map[string][]string{}, map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		packages[s.dir] = true
		if s.file.Doc != nil {
			comments[s.dir] = append(comments[s.dir], s.path)
		}
		if slices.Contains(forbidden, path.Base(s.dir)) || slices.Contains(forbidden, s.file.Name.Name) {
			t.Errorf("%s: the name of the package says nothing", s.path)
		}
	}
	for dir := range packages {
		if n := len(comments[dir]); n != 1 {
			t.Errorf("%s: %d files have the package comment, want one: %v", dir, n, comments[dir])
		}
	}
}

func TestLeaksAreLookedFor(t *testing.T) {
	found := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "VerifyTestMain" {
				found[s.dir] = true
			}
			return true
		})
	}
	for _, dir := range leaks {
		if !found[dir] {
			t.Errorf("%s: no test calls goleak.VerifyTestMain", dir)
		}
	}
}

func TestReadme(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if n := strings.Count(text, "\n"); n >= maxReadme {
		t.Errorf("README.md has %d lines, want fewer than %d", n, maxReadme)
	}
	for _, command := range []string{"go run ./cmd/testenv demo", "go run ./cmd/testenv test"} {
		if !strings.Contains(text, command) {
			t.Errorf("README.md does not show %q", command)
		}
	}
}

func TestSourceTreeIsDescribed(t *testing.T) {
	const page = "docs/development.md"
	text, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := line(keys(mayImport), e.Name()); e.IsDir() && ok && !strings.Contains(string(text), "`"+e.Name()) {
			t.Errorf("%s does not say what is in `%s`", page, e.Name())
		}
	}
}

// What is linked has to be worth it: each module that our code imports says in go.mod what it is for.
func TestModulesHaveReasons(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if module, reason, _ := strings.Cut(strings.TrimSpace(line), " // "); strings.HasPrefix(line, "\t") {
			n++
			if reason == "" {
				t.Errorf("go.mod: %s has no comment with its reason", module)
			}
		}
	}
	if n == 0 {
		t.Error("go.mod requires nothing")
	}
}

// TestTablesAreAlive finds lines of the tables that no folder needs any more.
func TestTablesAreAlive(t *testing.T) {
	dirs := map[string]bool{}
	for _, s := range sources(t) {
		row, _ := line(keys(mayImport), s.dir)
		dirs[row] = true
	}
	for row := range mayImport {
		if !dirs[row] {
			t.Errorf("mayImport has a line for %s, which has no Go files", row)
		}
	}
}

func TestAllowed(t *testing.T) {
	tests := []struct {
		dir, imported string
		test          bool
		want          bool
	}{
		{"registry", "artifacts/fault", false, true},
		{"registry", "registry/internal/wire", false, true},
		{"registry", "agent", false, false},
		{"registry", "testenv", false, false},
		{"registry", "testenv", true, true},
		{"registry", "signing", true, false},
		{"artifacts/margo", "registry", false, false},
		{"artifacts/margo", "testenv", true, false},
		{"agent", "agent/containerd", false, false},
		{"agent", "agent/containerd", true, true},
		{"agent/workload", "agent", false, false},
		{"agent/store", "testenv", true, true},
		{"agent/store", "agent/network", false, false},
		{"cmd/longshore", "signing", false, true},
		{"cmd/longshore-agent", "agent/containerd", false, true},
		{"cmd/longshore", "testenv", false, false},
		{"cmd/testenv", "testenv/demo", false, true},
		{"testenv/demo", "registry", false, true},
		{"testenv", "cmd/longshore", false, false},
	}
	for _, tt := range tests {
		row, _ := line(keys(mayImport), tt.dir)
		if got := (source{dir: tt.dir, test: tt.test}).allowed(row, tt.imported); got != tt.want {
			t.Errorf("%s (test: %v) may import %s: %v, want %v", tt.dir, tt.test, tt.imported, got, tt.want)
		}
	}
}

func TestWithin(t *testing.T) {
	tests := []struct {
		prefix, of string
		want       bool
	}{
		{"agent", "agent", true},
		{"agent", "agent/store", true},
		{"agent", "agents", false},
		{"oras.land/oras-go", "oras.land/oras-go/v2/registry", true},
		{"os", "os/exec", true},
	}
	for _, tt := range tests {
		if got := within(tt.prefix, tt.of); got != tt.want {
			t.Errorf("within(%q, %q) = %v, want %v", tt.prefix, tt.of, got, tt.want)
		}
	}
	if row, ok := line([]string{"agent", "agent/store"}, "agent/store/x"); row != "agent/store" || !ok {
		t.Errorf("line = %q, %v, want the longest", row, ok)
	}
}

// within reports whether a path is prefix or below it.
func within(prefix, of string) bool { return of == prefix || strings.HasPrefix(of, prefix+"/") }

// line finds the longest row that a path is within.
func line(rows []string, dir string) (string, bool) {
	best, ok := "", false
	for _, row := range rows {
		if within(row, dir) && len(row) > len(best) {
			best, ok = row, true
		}
	}
	return best, ok
}

func keys(m map[string][]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// root is the top of the repository; tests run in their own folder.
func root(t *testing.T) string {
	t.Helper()
	return filepath.Join("..", "..")
}

// sources parses every Go file of the module.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	top := root(t)
	err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if e.IsDir() {
			name := e.Name()
			_, nested := os.Stat(filepath.Join(p, "go.mod"))
			if rel != "." && (nested == nil || name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse %s: %w", rel, err)
		}
		all = append(all, source{rel, path.Dir(rel), strings.HasSuffix(rel, "_test.go") || slices.Contains(suites, path.Dir(rel)), f, set})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
