package machine

import (
	"path"
	"slices"
	"strings"
)

// kinds of interfaces, in the order in which they are told.
var kinds = []string{"ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232"}

// Kinds of links that the kernel tells by number (include/uapi/linux/if_arp.h).
const (
	arpEther = "1"
	arpCAN   = "280"
	arpRawIP = "519" // modems
)

// interfaces are the kinds of interfaces with hardware behind them: bridges, pairs of containers, tunnels and dummies are not.
func (t *tree) interfaces() []string {
	seen := map[string]bool{
		"bluetooth": slices.ContainsFunc(t.list("sys/class/bluetooth", "hci"), func(n string) bool {
			return !strings.Contains(n, ":") && t.device("bluetooth", n) != "" // "hci0:11" is a connection
		}),
		"usb":      len(t.list("sys/bus/usb/devices", "usb")) > 0,
		"cellular": len(t.list("sys/class/wwan", "wwan")) > 0,
	}
	for _, n := range t.list("sys/class/net", "") {
		if t.device("net", n) != "" {
			seen[t.link(path.Join("sys/class/net", n), n)] = true
		}
	}
	for _, n := range t.list("sys/class/tty", "tty") {
		if t.device("tty", n) != "" {
			seen[t.serial(n)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return !seen[k] })
}

// link is the kind of a network interface; "": Margo has no word for it.
func (t *tree) link(dir, name string) string {
	kind, by := t.text(path.Join(dir, "type")), t.value(path.Join(dir, "uevent"), "DEVTYPE")
	switch {
	case kind == arpCAN:
		return "canbus"
	case by == "wwan" || kind == arpRawIP || strings.HasPrefix(name, "ww"):
		return "cellular"
	case by == "wlan" || t.has(path.Join(dir, "wireless")) || t.has(path.Join(dir, "phy80211")):
		return "wifi"
	case kind == arpEther:
		return "ethernet"
	}
	return ""
}

// modems are drivers of the serial ports of cellular modems.
var modems = []string{"option1", "qcserial", "sierra", "hso", "ipw"}

// serial is the kind of a serial port with hardware behind it; "": it is none that people plug a cable into.
func (t *tree) serial(name string) string {
	switch {
	case strings.HasPrefix(name, "ttyS") && strings.Trim(name[len("ttyS"):], "0123456789") == "":
		if kind := t.text(path.Join("sys/class/tty", name, "type")); kind == "" || kind == "0" { // the kernel makes some that are not there
			return ""
		}
		return "rs232"
	case strings.HasPrefix(name, "ttyUSB"):
		d := t.device("tty", name)
		if slices.Contains(modems, t.driver(d)) || slices.Contains(modems, t.driver(path.Dir(d))) {
			return "cellular"
		}
		return "rs232"
	}
	soc := []string{"ttyAMA", "ttymxc", "ttySC", "ttySTM", "ttyPS", "ttyLP", "ttyO", "ttyTHS", "ttyHS", "ttyMAX", "ttyXRUSB"}
	if slices.ContainsFunc(soc, func(port string) bool { return strings.HasPrefix(name, port) }) {
		return "rs232"
	}
	return ""
}
