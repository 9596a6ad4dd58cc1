// Package fleet computes the state of every device of a fleet from a directory of files, shows the changes, and
// publishes it.
//
// [Read] reads the directory (strict YAML, every fault with its position). [Resolve] looks up the applications that it
// names, [Compile] places them on devices and sets their parameters, [Fleet.Plan] compares with what each device has in
// the registry, and [Plan.Publish] publishes exactly that; package rollout does it in waves. The package computes: files come
// in as an fs.FS, registries behind the small ports [Registry] and [Publisher].
package fleet

import (
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// File is the file of a fleet's directory that is read first; it names the others.
const File = "fleet.yaml"

// Limits of a fleet's files.
const (
	maxFiles    = 4096    // files of one fleet
	maxDevices  = 100_000 // devices of one fleet
	maxFaults   = 200     // reported faults; more do not help
	maxTemplate = 255     // characters of a repository

	maxReportKey = 64 << 10 // bytes of a device's public key
)

// Fleet is the content of the files.
type Fleet struct {
	Name         string // of the fleet; {fleet} in States, and part of the tag of its rollout
	Namespace    string // of the deployments; else artifacts.DefaultNamespace
	Registry     string // "host/path": references without a host are relative to it
	States       string // repository of the states, "host/path", may have {fleet} and {labels.KEY}
	Endpoint     string // URL of the fleet endpoint that devices report to; "": none
	Reports      *Reports
	Rollout      *Rollout
	Windows      schedule.Windows // in which devices make changes; the zero value: at any time
	Groups       []*Group
	Applications []*Application
	Deployments  []*Deployment
	Devices      []*Device // sorted by id
	Lock         Lock      // exact versions of applications; nil: no lock

	files map[string]string // digests of the files that were read, by name
	byID  map[string]*Device
}

// Reports: devices report through the registry, signed with their own keys.
type Reports struct {
	Repository string // "host/path", may have {fleet} and {labels.KEY}
	Keys       string // directory, from the fleet's, with the public keys of devices: DEVICE-TAG.pub
}

// Group names devices that have something in common.
type Group struct {
	Name       string
	Select     Selector
	Parameters map[string]Values // by deployment
	Rollout    *Rollout          // nil: the fleet's
	Windows    *schedule.Windows // nil: the fleet's; the zero value: changes are made at any time

	capabilities          *capabilities
	at, selected, windows place
}

// Application is something that can run: a package, or one Compose component without a description.
type Application struct {
	Name      string
	Package   string  // repository of an application package; "": Component
	Component string  // repository of a Compose component; "": Package
	Version   string  // exact, or a SemVer range; "": Channel
	Channel   string  // a tag that moves; "": Version
	Profile   string  // id of the profile to use; "": the first that fits a device
	Locked    *Locked // the locked version; nil: Version or Channel is resolved

	at, version place
}

// Deployment puts an application on devices.
type Deployment struct {
	Name        string
	Application string
	Profile     string // "": the application's
	Select      Selector
	Exclude     Selector // empty: none
	Parameters  Values

	at, application, selected, excluded place
}

// Device is one device.
type Device struct {
	ID         artifacts.DeviceID
	Labels     map[string]string
	Parameters map[string]Values // by deployment
	// Capabilities is what the device can do, shared between devices: its id says nothing. nil: nothing is known.
	Capabilities *margo.DeviceCapabilities
	Unchecked    bool // capabilities: unchecked: the device itself decides what it can run
	Reported     bool // capabilities: reported: they are what the device has reported to the fleet endpoint, see package rollout

	// ReportKey is the PEM of the key with which the device signs its reports in the registry; nil: there is none, and none counts.
	ReportKey []byte

	Windows *schedule.Windows // nil: its groups', else the fleet's; the zero value: changes are made at any time

	Groups []*Group // in the order of the files

	capabilities *capabilities
	at           place
}

// Values are parameters by name, as the files give them.
type Values map[string]Value

// Value is one parameter's value and its position.
type Value struct {
	Value any // string, int64, uint64, float64, bool, []any; nil removes the value of a wider level
	at    place
}

// Rollout has the steps in which a change reaches devices.
type Rollout struct {
	Waves     []Wave
	OnFailure string // halt (also ""), rollback
}

// Wave is one step of a rollout.
type Wave struct {
	Name    string
	Select  Selector      // empty: by Percent
	Percent int           // of the devices that change, those of earlier waves included; 0: by Select
	Soak    time.Duration // for which enough devices must be well
	Success int           // percent of the wave's devices that must be well; 0: 100
	// Deadline is how long after its publication enough devices must be well, or the wave has failed. 0: it is waited for
	// devices that are offline, for ever.
	Deadline time.Duration

	selected place
}

// place is a position in the files.
type place struct {
	file, path   string
	line, column int
}

func placeOf(file string, n *strict.Node) place {
	if n == nil {
		return place{file: file}
	}
	return place{file: file, path: n.Path(), line: n.Line, column: n.Column}
}

func keyPlace(file string, n *strict.Node) place {
	return place{file: file, path: n.Path(), line: n.KeyLine, column: n.KeyColumn}
}

// Device finds a device; nil if there is none.
func (f *Fleet) Device(id string) *Device { return f.byID[id] }

// Repository is where a device's states are. Values of its labels fill the template in; false names a label that the
// device does not have.
func (f *Fleet) Repository(d *Device) (repository, missing string) { return f.fill(f.States, d) }

// ReportRepository is where a device reports; "" where the files do not say that devices report through the registry, or a label of
// the template is missing.
func (f *Fleet) ReportRepository(d *Device) string {
	if f.Reports == nil {
		return ""
	}
	out, _ := f.fill(f.Reports.Repository, d)
	return out
}

func (f *Fleet) fill(template string, d *Device) (out, missing string) {
	out = strings.ReplaceAll(template, "{fleet}", f.Name)
	for {
		before, rest, found := strings.Cut(out, "{labels.")
		if !found {
			return out, ""
		}
		key, after, _ := strings.Cut(rest, "}") // Read has checked it
		value, ok := d.Labels[key]
		if !ok {
			return "", key
		}
		out = before + strings.ToLower(value) + after
	}
}

// Repositories are where states are, with the devices whose states are there; of the devices that choose means, nil: all.
func (f *Fleet) Repositories(choose func(*Device) bool) map[string][]artifacts.DeviceID {
	out := map[string][]artifacts.DeviceID{}
	for _, d := range f.Devices {
		if choose == nil || choose(d) {
			at, _ := f.Repository(d) // Read has reported what is missing
			out[at] = append(out[at], d.ID)
		}
	}
	return out
}

// Matches reports whether a selector selects the device.
func (d *Device) Matches(s Selector) bool {
	return s.matches(func(key string) []string {
		switch key {
		case keyDevice:
			return []string{string(d.ID)}
		case keyGroup:
			names := make([]string, 0, len(d.Groups))
			for _, g := range d.Groups {
				names = append(names, g.Name)
			}
			return names
		}
		if v, ok := d.Labels[key]; ok {
			return []string{v}
		}
		return nil
	})
}
