package fleet

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Beginning has the initial values of a fleet whose files do not exist yet.
type Beginning struct {
	Name      string
	Registry  string   // "host/path"; "": to be filled in
	Component string   // "repository:version"; "": none, or Package
	Package   string   // "repository:version"; "": none, or Component
	Devices   []string // ids
}

// BeginningFile is a file of a fleet.
type BeginningFile struct {
	Name string
	Data []byte
}

// Files writes the first files of a fleet.
func (b Beginning) Files() ([]BeginningFile, error) {
	if why := "not " + nameWords; !ValidName(b.Name) {
		if nameFormat.MatchString(b.Name) {
			why = signatureWords
		}
		return nil, fault.WithHint(fmt.Errorf("fleet %q: %w: %s", b.Name, fault.ErrInvalid, why), "give it another one with --name")
	}
	base := strings.TrimPrefix(b.Registry, "oci://")
	if base == "" {
		base = "registry.example.com/plant"
	} else if !validRepository(base, true) {
		return nil, fmt.Errorf("registry %q: %w: not a host with a path", b.Registry, fault.ErrInvalid)
	}
	application, name, err := b.application(base)
	if err != nil {
		return nil, err
	}
	devices := ""
	for _, id := range b.Devices {
		if _, err := artifacts.ParseDeviceID(id); err != nil {
			return nil, err
		}
		devices += fmt.Sprintf("  - {id: %q}\n", id)
	}
	devices = cmp.Or(devices, "  # - {id: press-07, labels: {site: graz}, capabilities: capabilities/press-07.json}\n")
	text := fmt.Sprintf(`# yaml-language-server: $schema=%s
# What the devices of this fleet are to run. Look with "longshore fleet plan", publish with "longshore fleet publish".
fleet: %q
registry: %q
# states: state                # repository of the devices' states, below the registry
# include: [devices/*.yaml]    # further files with applications, groups, deployments and devices

applications:
%s
deployments:
%s
# groups:
#   line-a: {select: "site=graz, line in (a)", parameters: {%s: {}}}

devices:
%s`, SchemaFile, b.Name, base, application, b.deployment(name), name, devices)
	return []BeginningFile{{File, []byte(text)}, {SchemaFile, Schema()}}, nil
}

func (b Beginning) application(base string) (text, name string, err error) {
	kind, reference := "component", b.Component
	if b.Package != "" {
		kind, reference = "package", b.Package
	}
	if reference == "" {
		return "  # line-monitor: {package: apps/line-monitor, version: ~1.4}\n", "line-monitor", nil
	}
	repository, version, ok := strings.Cut(strings.TrimPrefix(reference, "oci://"), ":")
	if at := strings.LastIndexByte(reference, ':'); at > strings.LastIndexByte(reference, '/') {
		repository, version, ok = strings.TrimPrefix(reference[:at], "oci://"), reference[at+1:], true
	}
	// If it contains the registry, it is relative to that.
	below, inside := strings.CutPrefix(repository, base+"/")
	full := repository
	if inside {
		full = below
	} else if strings.HasPrefix(reference, "oci://") {
		full = "oci://" + repository
	}
	if _, err := parseVersion(version); !ok || version == "" || err != nil || !validRepository(Absolute("host", full), false) {
		return "", "", fault.WithHint(fmt.Errorf("%s %q: %w: not a repository with a version", kind, reference, fault.ErrInvalid),
			"write it like components/line-monitor:1.4.0")
	}
	name = notName.Regexp().ReplaceAllString(path.Base(repository), "-")
	return fmt.Sprintf("  %s: {%s: %q, version: %q}\n", name, kind, full, version), name, nil
}

var notName = strict.Expression(`[^a-z0-9-]+`)

func (b Beginning) deployment(name string) string {
	if b.Component == "" && b.Package == "" {
		return fmt.Sprintf("  # %s: {application: %s, select: \"*\"}\n", name, name)
	}
	return fmt.Sprintf("  %s:\n    application: %s\n    select: \"*\"\n    # parameters: {KEY: value}\n", name, name)
}
