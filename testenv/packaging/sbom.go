package packaging

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"path/filepath"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbomOf lists the Go modules that are linked into programs, as a CycloneDX document. They are read from the programs
// themselves.
func sbomOf(name, version string, at time.Time, dir string, programs []string) ([]byte, error) {
	modules := map[string]cdx.Component{}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(dir, p))
		if err != nil {
			return nil, err
		}
		add := func(path, version string) {
			url := "pkg:golang/" + path + "@" + version
			modules[url] = cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
		}
		add("std", info.GoVersion)
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(m.Path, m.Version)
		}
	}
	var all []cdx.Component
	for _, c := range modules {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: at.Format(time.RFC3339),
		Component: &cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version},
	}
	bom.Components = &all
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return b.Bytes(), err
}
