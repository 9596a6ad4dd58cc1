package machine

import (
	"path"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// displays are the monitors and panels that are connected.
func (t *tree) displays() []margo.Peripheral {
	var out []margo.Peripheral
	for _, n := range t.list("sys/class/drm", "card") {
		dir := path.Join("sys/class/drm", n)
		if !strings.Contains(n, "-") || strings.Contains(n, "Writeback") || strings.Contains(n, "Virtual") || t.text(path.Join(dir, "status")) != "connected" {
			continue
		}
		p := margo.Peripheral{Type: "display"}
		p.Manufacturer, p.Model = monitor(t.bytes(path.Join(dir, "edid"), 128))
		out = append(out, p)
	}
	return out
}

// monitor reads the first block of EDID; "": it does not say.
func monitor(edid []byte) (manufacturer, model string) {
	if len(edid) < 128 || string(edid[:8]) != "\x00\xff\xff\xff\xff\xff\xff\x00" {
		return "", ""
	}
	id := uint(edid[8])<<8 | uint(edid[9]) // three letters of five bits, A is 1
	for _, shift := range []uint{10, 5, 0} {
		letter := id >> shift & 31
		if letter < 1 || letter > 26 {
			manufacturer = ""
			break
		}
		manufacturer += string(rune('A' + letter - 1))
	}
	for at := 54; at <= 108; at += 18 { // descriptors; one of a name begins 00 00 00 fc 00 and ends at a line feed
		if d := edid[at : at+18]; string(d[:5]) == "\x00\x00\x00\xfc\x00" {
			name, _, _ := strings.Cut(string(d[5:]), "\n")
			model = clean(name)
		}
	}
	return manufacturer, model
}
