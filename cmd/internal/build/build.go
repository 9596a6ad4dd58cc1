// Package build tells what a program was built from.
package build

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// version is that of a release, without v: the linker sets it, see testenv/dist.
var version string

// Info is what a program was built from.
type Info struct {
	Version  string `json:"version"`            // "1.2.3", else as the go command stamped it: a pseudo-version, or "devel"
	Commit   string `json:"commit,omitempty"`   // "": not stamped
	Date     string `json:"date,omitempty"`     // of the commit, RFC 3339 in UTC
	Modified bool   `json:"modified,omitempty"` // built from more than the commit
	Go       string `json:"go"`
	Platform string `json:"platform"` // "linux/arm64"
}

// Read tells what this program was built from.
func Read() Info {
	info, _ := debug.ReadBuildInfo()
	return read(version, info)
}

func read(version string, info *debug.BuildInfo) Info {
	i := Info{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if i.Version == "" && info.Main.Version != "(devel)" {
		i.Version = info.Main.Version
	}
	i.Version = cmp.Or(i.Version, "devel")
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.time":
			i.Date = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// Text is a line for people, after the program's name.
func (i Info) Text() string {
	var from []string
	if i.Commit != "" {
		from = append(from, "commit "+i.Commit[:min(len(i.Commit), 12)])
	}
	if i.Date != "" {
		from = append(from, i.Date)
	}
	if i.Modified {
		from = append(from, "modified")
	}
	out := i.Version
	if len(from) > 0 {
		out += " (" + strings.Join(from, ", ") + ")"
	}
	return out + " " + i.Go + " " + i.Platform
}

// Version is Info.Version of this program.
func Version() string { return Read().Version }

// floor is when this was written. A device whose clock begins in 1970 learns the time from here on; being some years old does no harm.
var floor = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// Time is when what the program was built from was committed: it is no earlier than that. Where the go command did not stamp it,
// as in a build without the repository, it is when this package was.
func Time() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return floor
	}
	return committed(info.Settings)
}

func committed(settings []debug.BuildSetting) time.Time {
	for _, s := range settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t.UTC()
			}
		}
	}
	return floor
}
