package machine

import (
	"path"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// cameraDrivers bring pictures from outside; other drivers of video devices decode, encode and scale.
var cameraDrivers = []string{"uvcvideo", "unicam", "rp1-cfe", "bcm2835-v4l2", "imx-media", "mxc-isi", "rkisp1", "tegra-video"}

// cameras are the devices that capture video, each once however many nodes it has.
func (t *tree) cameras() []margo.Peripheral {
	found := map[string]margo.Peripheral{}
	for _, n := range t.list("sys/class/video4linux", "video") {
		d := t.device("video4linux", n)
		if d == "" || !slices.Contains(cameraDrivers, t.driver(d)) && !t.captures(n) {
			continue
		}
		p := margo.Peripheral{Type: "camera"}
		if p.Manufacturer, p.Model = t.maker(d); p.Model == "" {
			p.Model = t.name(path.Join("sys/class/video4linux", n, "name"))
		}
		found[d] = p
	}
	return inOrder(found)
}

// captures reports whether udev found that a video device captures, and is no scaler.
func (t *tree) captures(name string) bool {
	dir := path.Join("sys/class/video4linux", name)
	number := t.text(path.Join(dir, "dev"))
	if number == "" || strings.Contains(t.text(path.Join(dir, "name")), "isp") {
		return false
	}
	can := t.value(path.Join("run/udev/data", "c"+number), "E:ID_V4L_CAPABILITIES")
	return strings.Contains(can, ":capture:") && !strings.Contains(can, ":video_output:")
}
