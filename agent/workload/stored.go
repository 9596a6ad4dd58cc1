package workload

import "path"

// StoredVolume is a named volume that a device's disk has, whether a project uses it or not.
type StoredVolume struct {
	Project string // "": projects share it by its name
	Name    string // in the project; else that of the sharing
	VolumeOwner
}

// VolumeOwner is the deployment that created a volume, or used it last. The zero value is unknown.
type VolumeOwner struct {
	Deployment  string `json:"deployment"` // id
	Application string `json:"application"`
	Component   string `json:"component"`
}

// ID names the volume on its device: "project/volume", or the name of a shared one.
func (v StoredVolume) ID() string { return path.Join(v.Project, v.Name) }
