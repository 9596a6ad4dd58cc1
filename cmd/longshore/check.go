package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

// kinds of documents that check knows, in the order of --kind.
const (
	kindProject      = "project" // a directory with compose.yaml, or another of its names
	kindPackage      = "package" // a directory with margo.yaml
	kindChart        = "chart"   // a directory with Chart.yaml
	kindArchive      = "archive" // a Compose Archive
	kindBundle       = "bundle"
	kindCompose      = "compose"
	kindDeployment   = "deployment"
	kindDescription  = "description"
	kindManifest     = "manifest" // a State Manifest
	kindStatus       = "status"
	kindCapabilities = "capabilities"
	kindProblem      = "problem"
	kindLock         = "lock"
	kindTrust        = "trust"
	kindAgent        = "agent"
)

var checkCommand = command{
	name: "check", args: "FILE|DIRECTORY...", min: 1, max: -1,
	usage: "check documents, offline",
	about: "Checks Margo documents, Compose projects (the directory with compose.yaml), Helm charts (the directory with Chart.yaml), " +
		"Compose Archives, bundles, locks, trust.yaml and agent.yaml as strictly as a device does, and reports every error with " +
		"its position. The kind is detected from the content, or set with --kind: " + strings.Join(checkKinds, ", ") + ".",
	examples: []string{"./line-monitor", "deployments/*.yaml trust.yaml", "--kind capabilities - < device.json"},
	flags: []cmdline.Flag{
		{Name: "kind", OneOf: checkKinds, Usage: "`KIND` of every argument; default: detected"},
	},
	run: (*call).check,
}

// reader checks the bytes of one kind of document.
type reader func(file string, data []byte) error

func (c *call) readers() map[string]reader {
	return map[string]reader{
		kindArchive: c.checkArchive,
		kindBundle: func(file string, data []byte) error {
			_, err := artifacts.ReadBundle(data)
			return named(file, err)
		},
		kindCompose: func(file string, data []byte) error { return c.checkCompose(file, data, nil) },
		kindDeployment: func(file string, data []byte) error {
			d, err := margo.ParseApplicationDeployment(file, data)
			if err == nil {
				c.noteParameters(deploymentParameters(file, data, d))
			}
			return err
		},
		kindDescription: func(file string, data []byte) error {
			d, err := margo.ParseApplicationDescription(file, data)
			if err == nil {
				c.noteParameters(packageParameters(file, data, d))
			}
			return err
		},
		kindManifest:     parsed(margo.ParseStateManifest),
		kindStatus:       either(margo.ParseDeploymentStatus, margo.ParseDeploymentStatusYAML),
		kindCapabilities: either(margo.ParseDeviceCapabilities, margo.ParseDeviceCapabilitiesYAML),
		kindProblem:      either(margo.ParseProblem, margo.ParseProblemYAML),
		kindLock:         parsed(artifacts.ParseLock),
		kindAgent:        parsed(config.Parse),
		kindTrust:        parsed(readPolicy),
	}
}

func parsed[T any](parse func(string, []byte) (T, error)) reader {
	return func(file string, data []byte) error {
		_, err := parse(file, data)
		return err
	}
}

var checkKinds = []string{
	kindProject, kindPackage, kindChart, kindArchive, kindBundle, kindCompose, kindDeployment, kindDescription, kindManifest, kindStatus,
	kindCapabilities, kindProblem, kindLock, kindTrust, kindAgent,
}

type checkResult struct {
	Files []checkedFile `json:"files"`
}

type checkedFile struct {
	File   string       `json:"file"`
	Kind   string       `json:"kind,omitempty"`
	Valid  bool         `json:"valid"`
	Faults []checkFault `json:"faults"`
}

type checkFault struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (r checkResult) text(w io.Writer) {
	for _, f := range r.Files {
		if f.Valid {
			row(w, "valid", "%s (%s)", f.File, f.Kind)
		}
	}
}

func (c *call) check(args []string) error {
	r := checkResult{Files: []checkedFile{}}
	var failed []error
	for _, name := range args {
		kind, err := c.checkOne(name)
		f := checkedFile{File: name, Kind: kind, Valid: err == nil, Faults: []checkFault{}}
		if err != nil {
			f.Faults = faultsOf(name, err)
			failed = append(failed, err)
		}
		r.Files = append(r.Files, f)
	}
	return cmp.Or(c.show(r), errors.Join(failed...))
}

func faultsOf(file string, err error) []checkFault {
	document, ok := errors.AsType[*strict.Error](err)
	if !ok {
		return []checkFault{{File: file, Message: fault.Summary(err), Hint: fault.Hint(err)}}
	}
	var out []checkFault
	for _, f := range document.Faults {
		out = append(out, checkFault{cmp.Or(f.File, document.File), f.Line, f.Column, f.Path, f.Text(), f.Hint})
	}
	return out
}

// checkOne detects the kind of a file or a directory, and checks it.
func (c *call) checkOne(name string) (kind string, err error) {
	kind = c.String("kind")
	if info, err := os.Stat(name); name != "-" && err == nil && info.IsDir() {
		return c.checkDirectory(name, kind)
	}
	data, err := c.input(name, artifacts.MaxArchive)
	if err != nil {
		return kind, err
	}
	if kind == "" {
		if kind, err = detect(name, data); err != nil {
			return "", err
		}
	}
	read, ok := c.readers()[kind]
	if !ok {
		return kind, c.misused("%s: a %s must be a directory", name, kind)
	}
	return kind, read(name, data)
}

func (c *call) checkDirectory(name, kind string) (string, error) {
	dir := os.DirFS(name)
	if kind == "" {
		switch {
		case composefile.ProjectFiles(dir) != nil:
			kind = kindProject
		case exists(dir, "margo.yaml"):
			kind = kindPackage
		case exists(dir, artifacts.ChartFile):
			kind = kindChart
		default:
			err := fmt.Errorf("%s: %w: it has no compose.yaml, margo.yaml or Chart.yaml", name, fault.ErrInvalid)
			return "", fault.WithHint(err, "name the documents in the directory")
		}
	}
	switch kind {
	case kindProject:
		packed, err := c.packProject(name)
		if err != nil {
			return kind, err
		}
		_, err = artifacts.PackComponent(packed.Files, artifacts.ComponentOptions{Name: "check", Version: "0.0.0"})
		return kind, named(name, err)
	case kindPackage:
		a, d, err := artifacts.PackPackage(dir, artifacts.PackageOptions{})
		if err == nil {
			c.noteParameters(packageParameters(path.Join(name, artifacts.DescriptionFile), description(a), d))
		}
		return kind, named(name, err)
	case kindChart:
		return kind, c.checkChart(name)
	}
	return kind, c.misused("%s is a directory, but a %s must be a file", name, kind)
}

// checkCompose checks a Compose file, and prints notices for settings that a device handles differently than expected.
func (c *call) checkCompose(file string, data []byte, dir fs.FS) error {
	project, err := composefile.Parse(file, data)
	if err != nil {
		return err
	}
	notices, err := compose.Check(c.Context, project, dir)
	if err != nil {
		return err
	}
	c.printNotices(file, notices)
	return nil
}

// printNotices prints notices on stderr.
func (p *program) printNotices(file string, notices []strict.Fault) {
	for _, n := range notices {
		n.Message = "notice: " + n.Message
		fmt.Fprintln(p.stderr, &strict.Error{File: file, Faults: []strict.Fault{n}})
	}
}

func exists(dir fs.FS, name string) bool {
	_, err := fs.Stat(dir, name)
	return err == nil
}

// named adds the name of a file to an error without it.
func named(file string, err error) error {
	if _, ok := errors.AsType[*strict.Error](err); err == nil || ok || strings.HasPrefix(err.Error(), file) {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}

// checkArchive checks a Compose Archive and the compose.yaml in it.
func (c *call) checkArchive(file string, data []byte) error {
	a, err := artifacts.ReadArchive(data)
	if err != nil {
		return named(file, err)
	}
	return c.checkCompose(file+":"+path.Join(a.Root, composefile.Name), a.Compose, a.FS)
}

// byName are the kinds of files by their names.
var byName = map[string]string{
	composefile.Name: kindCompose, artifacts.LockFile: kindLock, "margo.yaml": kindDescription, "trust.yaml": kindTrust, "agent.yaml": kindAgent,
}

// byMembers are the kinds of documents by members that each has; the first counts.
var byMembers = []struct {
	kind    string
	members []string
}{
	{kindManifest, []string{"manifestVersion"}},
	{kindStatus, []string{"deploymentId"}},
	{kindDescription, []string{"deploymentProfiles"}},
	{kindDeployment, []string{"metadata", "spec"}},
	{kindDeployment, []string{"spec", "id"}},
	{kindCapabilities, []string{"properties"}},
	{kindCompose, []string{"services"}},
	{kindTrust, []string{"rules"}},
	{kindLock, []string{"images"}},
	{kindAgent, []string{"device", "state"}},
	{kindProblem, []string{"type", "title"}},
}

// detect finds the kind of a file: by its first bytes, its name, its members.
func detect(name string, data []byte) (string, error) {
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return archiveKind(data), nil
	}
	if kind, ok := byName[filepath.Base(name)]; ok {
		return kind, nil
	}
	root, err := parseAny(name, data)
	if err != nil && (bytes.HasPrefix(data, []byte("services:")) || bytes.Contains(data, []byte("\nservices:"))) {
		return kindCompose, nil // whose anchors and numbers other documents may not have
	}
	if err != nil {
		return "", err
	}
	if root.Kind() == strict.Object {
		for _, k := range byMembers {
			if !slices.ContainsFunc(k.members, func(m string) bool { return root.Get(m) == nil }) {
				return k.kind, nil
			}
		}
	}
	err = fmt.Errorf("%s: %w: its content is none of %s", name, fault.ErrUnsupported, strings.Join(checkKinds, ", "))
	return "", fault.WithHint(err, "name its kind with --kind")
}

// parseAny reads JSON or YAML.
func parseAny(name string, data []byte) (*strict.Node, error) {
	if isJSON(data) {
		return strict.JSON(name, data)
	}
	return strict.YAML(name, data)
}

func isJSON(data []byte) bool {
	t := bytes.TrimSpace(data)
	return len(t) > 0 && (t[0] == '{' || t[0] == '[')
}

// either reads a document that may be JSON or YAML.
func either[T any](asJSON, asYAML func(string, []byte) (T, error)) reader {
	return func(file string, data []byte) error {
		if isJSON(data) {
			return parsed(asJSON)(file, data)
		}
		return parsed(asYAML)(file, data)
	}
}

// archiveKind looks for compose.yaml below a top directory; anything else is a bundle.
func archiveKind(data []byte) string {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return kindBundle
	}
	t := tar.NewReader(io.LimitReader(z, artifacts.MaxUnpacked))
	for range artifacts.MaxEntries {
		h, err := t.Next()
		if err != nil {
			break
		}
		if parts := strings.Split(strings.TrimPrefix(path.Clean(h.Name), "./"), "/"); len(parts) == 2 && parts[1] == composefile.Name {
			return kindArchive
		}
	}
	return kindBundle
}
