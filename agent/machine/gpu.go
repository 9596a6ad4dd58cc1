package machine

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// gpus are what computes: it has a render node, NVIDIA's driver lists it, or a CDI specification describes it. A controller that only
// shows a picture, as of a server's management, is none.
func (t *tree) gpus(cdi []string) []margo.Peripheral {
	found := map[string]margo.Peripheral{} // by the device's place on its bus
	for _, n := range t.list("sys/class/drm", "renderD") {
		d := t.device("drm", n)
		if driver := t.driver(d); d == "" || driver == "vgem" || driver == "vkms" {
			continue
		}
		p := margo.Peripheral{Type: "gpu"}
		p.Manufacturer, p.Model = t.maker(d)
		found[path.Base(d)] = p
	}
	const nvidia = "proc/driver/nvidia/gpus"
	for _, n := range t.list(nvidia, "") {
		p := margo.Peripheral{Type: "gpu", Manufacturer: "NVIDIA"}
		for line := range strings.Lines(t.text(path.Join(nvidia, n, "information"))) {
			if model, ok := strings.CutPrefix(line, "Model:"); ok {
				p.Model = clean(model)
			}
		}
		found[n] = p
	}
	out := inOrder(found)
	for _, kind := range cdi {
		domain, class, _ := strings.Cut(kind, "/")
		if class != "gpu" {
			continue
		}
		maker := domain
		if known, ok := map[string]string{"nvidia.com": "NVIDIA", "amd.com": "AMD", "intel.com": "Intel"}[domain]; ok {
			maker = known
		}
		if !slices.ContainsFunc(out, func(p margo.Peripheral) bool { return p.Manufacturer == maker }) {
			out = append(out, margo.Peripheral{Type: "gpu", Manufacturer: maker})
		}
	}
	return out
}

// inOrder are the peripherals in order of their places.
func inOrder(found map[string]margo.Peripheral) []margo.Peripheral {
	var out []margo.Peripheral
	for _, at := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[at])
	}
	return out
}

const (
	maxSpecification  = 1 << 20 // bytes of a CDI specification
	maxSpecifications = 64
)

// cdi are the kinds of devices that CDI specifications describe.
func (t *tree) cdi(dirs []string) []string {
	if dirs == nil {
		dirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	seen := map[string]bool{}
	for _, dir := range dirs {
		dir = strings.Trim(path.Clean(dir), "/")
		for i, n := range t.list(dir, "") {
			if i == maxSpecifications {
				break
			}
			read := strict.YAML
			switch path.Ext(n) {
			case ".json":
				read = strict.JSON
			case ".yaml":
			default:
				continue
			}
			data := t.bytes(path.Join(dir, n), maxSpecification)
			if data == nil {
				continue
			}
			spec, err := read(n, data)
			if err != nil {
				t.note(path.Join(dir, n), err)
				continue
			}
			if kind := clean(spec.Get("kind").Text()); strings.Count(kind, "/") == 1 && len(spec.Get("devices").Items()) > 0 {
				seen[kind] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
