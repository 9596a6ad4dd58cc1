package machine_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// plant makes a tree of lines "path = content" and "path -> target of a link".
func plant(t *testing.T, dir, lines string) fs.FS {
	t.Helper()
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, to, link := strings.Cut(line, " -> ")
		name, content, _ := strings.Cut(name, " = ")
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o700)
		if err == nil && link {
			err = os.Symlink(to, file)
		} else if err == nil {
			err = os.WriteFile(file, []byte(strings.NewReplacer(`\n`, "\n", `\0`, "\x00").Replace(content)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return os.DirFS(dir)
}

// class is an entry of a class: the link, and the device behind it with its driver.
func class(class, name, device, driver string) string {
	at := "devices/" + device + "/" + class + "/" + name
	return fmt.Sprintf("sys/class/%s/%s -> ../../%s\nsys/%s/device -> ../../../%s\nsys/devices/%s/driver -> ../%s\n", class, name, at, at, filepath.Base(device), device, driver)
}

// virtual is an entry of a class that the kernel makes of nothing.
func virtual(class, name, file string) string {
	at := "devices/virtual/" + class + "/" + name
	return fmt.Sprintf("sys/class/%s/%s -> ../../%s\nsys/%s/%s\n", class, name, at, at, file)
}

const (
	pc = "sys/class/dmi/id/sys_vendor = Dell Inc.\\n\nsys/class/dmi/id/product_name = OptiPlex 7090\\n\nsys/class/dmi/id/product_serial = 8XK2P3\\n\n" +
		"sys/devices/system/cpu/online = 0-7\\n\nproc/meminfo = MemFree: 1 kB\\nMemTotal:   16384000 kB\\n\nproc/sys/kernel/osrelease = 6.1.0-26-amd64\\n\n" +
		"sys/module/apparmor/parameters/enabled = Y\\n\nsys/fs/cgroup/cgroup.controllers = cpu\\n\ndev/kvm = x\nproc/sys/kernel/seccomp/actions_avail = allow\\n\nproc/sys/user/max_user_namespaces = 63000\\n\n" +
		"sys/bus/usb/devices/usb1/idVendor = 1d6b\\n\n" +
		"proc/asound/cards =  0 [PCH            ]: HDA-Intel - HDA Intel PCH\\n                      HDA Intel PCH at 0xf7e10000 irq 130\\n 1 [Loopback       ]: Loopback - Loopback\\n\n" +
		"proc/asound/pcm = 00-00: ALC257 Analog : ALC257 Analog : playback 1 : capture 1\\n00-03: HDMI 0 : HDMI 0 : playback 1\\n01-00: Loopback PCM : Loopback PCM : playback 8 : capture 8\\n\n"

	pi = "sys/firmware/devicetree/base/model = Raspberry Pi 4 Model B Rev 1.4\\0\nsys/firmware/devicetree/base/compatible = raspberrypi,4-model-b\\0brcm,bcm2711\\0\n" +
		"sys/firmware/devicetree/base/serial-number = 10000000abcdef01\\0\nsys/devices/system/cpu/online = 0-3\\n\nproc/meminfo = MemTotal: 3884360 kB\\n\nproc/sys/user/max_user_namespaces = 0\\n\n" +
		"proc/asound/cards =  0 [vc4hdmi0       ]: vc4-hdmi - vc4-hdmi-0\\n                      vc4-hdmi-0\\n\nproc/asound/pcm = 00-00: MAI PCM i2s-hifi-0 : MAI PCM HDMI i2s-hifi-0 : playback 1\\n\n"

	industrial = "sys/class/dmi/id/sys_vendor = To Be Filled By O.E.M.\\n\nsys/class/dmi/id/board_vendor = Advantech\\n\nsys/class/dmi/id/product_name = ARK-3533\\n\nsys/class/dmi/id/product_serial = 00000000\\n\n" +
		"sys/devices/system/cpu/online = 0,2-3\\n\nproc/meminfo = MemTotal: none\\n\n" +
		"etc/cdi/nvidia.yaml = cdiVersion: 0.6.0\\nkind: nvidia.com/gpu\\ndevices:\\n- name: \"0\"\\n\netc/cdi/half.json = {\"kind\": \n" +
		"var/run/cdi/npu.json = {\"cdiVersion\":\"0.6.0\",\"kind\":\"acme.example/npu\",\"devices\":[{\"name\":\"a\"}]}\n"
)

// input is an input device with the bits of its capabilities, as /proc/bus/input/devices of real machines shows them.
func input(n int, device, keys, rel, abs, properties string) string {
	at := fmt.Sprintf("sys/devices/%s/input/input%d", device, n)
	return class("input", fmt.Sprintf("input%d", n), device, "") + fmt.Sprintf("%[1]s/capabilities/key = %[2]s\\n\n%[1]s/capabilities/rel = %[3]s\\n\n%[1]s/capabilities/abs = %[4]s\\n\n%[1]s/properties = %[5]s\\n\n", at, keys, rel, abs, properties)
}

const (
	keyboardKeys = "1000000000007 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe"
	mouseKeys    = "ff0000 0 0 0 0"
	touchKeys    = "400 0 0 0 0 0"
)

func edid() string {
	b := make([]byte, 128)
	copy(b, "\x00\xff\xff\xff\xff\xff\xff\x00\x10\xac") // DEL
	copy(b[72:], "\x00\x00\x00\xfc\x00DELL U2720Q\n ")
	return strings.NewReplacer("\x00", `\0`, "\n", `\n`).Replace(string(b))
}

func TestReadFindsWhatIsThere(t *testing.T) {
	for _, tc := range []struct {
		name, tree string
		want       machine.Facts
	}{
		{
			"a PC", pc +
				class("net", "eno1", "pci0000:00/0000:00:1f.6", "e1000e") + "sys/class/net/eno1/type = 1\n" +
				class("net", "wlp3s0", "pci0000:00/0000:03:00.0", "iwlwifi") + "sys/class/net/wlp3s0/type = 1\nsys/class/net/wlp3s0/uevent = DEVTYPE=wlan\\nINTERFACE=wlp3s0\\n\n" +
				virtual("net", "docker0", "type = 1") + virtual("net", "veth12", "type = 1") + virtual("net", "dummy0", "type = 1") + virtual("net", "lo", "type = 772") +
				class("bluetooth", "hci0", "pci0000:00/0000:00:14.0/usb1/1-10/1-10:1.0", "btusb") +
				class("tty", "ttyS0", "pnp0/00:04", "serial") + "sys/class/tty/ttyS0/type = 4\\n\n" + class("tty", "ttyS1", "platform/serial8250", "serial8250") + "sys/class/tty/ttyS1/type = 0\\n\n" +
				virtual("tty", "tty0", "dev = 4:0") +
				class("drm", "renderD128", "pci0000:00/0000:00:02.0", "i915") + "sys/devices/pci0000:00/0000:00:02.0/vendor = 0x8086\\n\n" +
				"sys/class/drm/card0-DP-1/status = connected\\n\nsys/class/drm/card0-DP-1/edid = " + edid() + "\nsys/class/drm/card0-HDMI-A-1/status = disconnected\\n\n" +
				class("video4linux", "video0", "pci0000:00/0000:00:14.0/usb1/1-3/1-3:1.0", "uvcvideo") + "sys/devices/pci0000:00/0000:00:14.0/usb1/1-3/product = HD Pro Webcam\x07 C920\\n\n" +
				input(3, "pci0000:00/0000:00:14.0/usb1/1-5/1-5:1.0/0003:046D:C31C.0001", keyboardKeys, "0", "0", "0") +
				input(4, "pci0000:00/0000:00:14.0/usb1/1-6/1-6:1.0/0003:046D:C077.0002", mouseKeys, "903", "0", "0") +
				input(5, "platform/i8042/serio1", "e520 10000 0 0 0 0", "0", "660800011000003", "5") +
				input(0, "LNXSYSTM:00/LNXPWRBN:00", "10000000000000 0", "0", "0", "0") + // a power button
				input(6, "pci0000:00/0000:00:1f.3/sound/card0", "40 0 0 0 0 0", "0", "0", "0") + // a headset
				virtual("input", "input9", "capabilities/key = "+keyboardKeys) + // of a program
				"sys/class/video4linux/video1 -> ../../devices/pci0000:00/0000:00:14.0/usb1/1-3/1-3:1.0/video4linux/video1\nsys/devices/pci0000:00/0000:00:14.0/usb1/1-3/1-3:1.0/video4linux/video1/device -> ../../../1-3:1.0\n",
			machine.Facts{
				Vendor: "Dell Inc.", Model: "OptiPlex 7090", Serial: "8XK2P3", Cores: 8, MemoryBytes: 16384000 << 10, Kernel: "6.1.0-26-amd64",
				Interfaces: []string{"ethernet", "wifi", "bluetooth", "usb", "rs232"},
				Peripherals: []margo.Peripheral{
					{Type: "gpu", Manufacturer: "Intel"},
					{Type: "display", Manufacturer: "DEL", Model: "DELL U2720Q"},
					{Type: "camera", Model: "HD Pro Webcam C920"},
					{Type: "microphone", Model: "HDA Intel PCH"},
					{Type: "speaker", Model: "HDA Intel PCH"},
				},
				Features: []string{"apparmor", "cgroup2", "kvm", "seccomp", "userns"},
				Input:    []string{"keyboard", "mouse", "touchpad"},
			},
		},
		{
			"a board", pi +
				class("net", "eth0", "platform/fd580000.ethernet", "bcmgenet") + "sys/class/net/eth0/type = 1\n" +
				class("net", "wlan0", "platform/fe300000.mmcnr", "brcmfmac") + "sys/class/net/wlan0/type = 1\nsys/class/net/wlan0/phy80211/name = phy0\n" +
				class("tty", "ttyAMA0", "platform/fe201000.serial", "uart-pl011") +
				class("drm", "renderD128", "platform/fec00000.v3d", "v3d") + "sys/devices/platform/fec00000.v3d/of_node/compatible = brcm,2711-v3d\\0\n" +
				"sys/class/drm/card1-Writeback-1/status = connected\n" +
				class("video4linux", "video0", "platform/fe801000.csi", "unicam") + "sys/class/video4linux/video0/name = unicam-image\\n\n" +
				class("video4linux", "video11", "platform/bcm2835-codec", "bcm2835-codec") + "sys/class/video4linux/video11/name = bcm2835-codec-encode\\n\nsys/class/video4linux/video11/dev = 81:1\\n\n" +
				"run/udev/data/c81:1 = E:ID_V4L_CAPABILITIES=:\\n\n" +
				class("video4linux", "video2", "platform/grabber", "acme-grabber") + "sys/class/video4linux/video2/name = grabber\\n\nsys/class/video4linux/video2/dev = 81:2\\n\n" +
				"run/udev/data/c81:2 = I:1\\nE:ID_V4L_CAPABILITIES=:capture:\\n\n",
			machine.Facts{
				Vendor: "raspberrypi", Model: "Raspberry Pi 4 Model B Rev 1.4", Serial: "10000000abcdef01", Cores: 4, MemoryBytes: 3884360 << 10,
				Interfaces: []string{"ethernet", "wifi", "rs232"},
				Peripherals: []margo.Peripheral{
					{Type: "gpu", Manufacturer: "brcm", Model: "2711-v3d"}, {Type: "camera", Model: "unicam-image"}, {Type: "camera", Model: "grabber"},
				},
			},
		},
		{
			"an industrial PC", industrial +
				class("net", "can0", "pci0000:00/0000:02:00.0", "peak_pciefd") + "sys/class/net/can0/type = 280\n" +
				virtual("net", "vcan0", "type = 280") +
				class("net", "usb0", "pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0", "cdc_mbim") + "sys/class/net/usb0/type = 1\nsys/class/net/usb0/uevent = DEVTYPE=wwan\\n\n" +
				class("net", "ib0", "pci0000:00/0000:05:00.0", "mlx5_core") + "sys/class/net/ib0/type = 32\n" +
				class("tty", "ttyUSB0", "pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.2/ttyUSB0", "option1") +
				input(1, "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/0003:0EEF:0001.0001", touchKeys, "0", "260800000000003", "2") +
				input(2, "pci0000:00/0000:00:14.0/usb1/1-7/1-7:1.0/0003:0001:0001.0002", "not a number", "x", "", "") +
				class("drm", "card0", "pci0000:00/0000:07:00.0", "ast"),
			machine.Facts{
				Vendor: "Advantech", Model: "ARK-3533", Cores: 3,
				Interfaces:  []string{"cellular", "canbus"},
				Peripherals: []margo.Peripheral{{Type: "gpu", Manufacturer: "NVIDIA"}},
				CDI:         []string{"acme.example/npu", "nvidia.com/gpu"},
				Input:       []string{"touchscreen"},
			},
		},
		{"nothing", "", machine.Facts{Cores: 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := machine.Read(plant(t, t.TempDir(), tc.tree), machine.Place{Data: "/no/such/folder/yet", Cores: 2, Architecture: "arm64"})
			if got.StorageBytes == 0 {
				t.Error("the size of the nearest folder's file system is 0")
			}
			tc.want.StorageBytes, tc.want.Architecture = got.StorageBytes, "arm64"
			if d := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(machine.Facts{}, "Unread"), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("Read (-want +got):\n%s", d)
			}
			if half := strings.Contains(fmt.Sprint(got.Unread), "half.json"); half != (tc.name == "an industrial PC") {
				t.Errorf("not read: %q", got.Unread)
			}
		})
	}
}

// What cannot be read, is no file, or is very long is left out, and the rest is found.
func TestReadLeavesOutWhatItCannotRead(t *testing.T) {
	root := fstest.MapFS{
		"proc/meminfo":                     {Mode: fs.ModeNamedPipe},
		"etc/cdi/long.json":                {Data: []byte(`{"kind":"acme.example/gpu","devices":[{"name":"` + strings.Repeat("x", 2<<20) + `"}]}`)},
		"sys/class/dmi/id/product_name":    {Data: []byte(strings.Repeat("é", 1<<20) + "\xff")},
		"sys/devices/system/cpu/online":    {Data: []byte("3-1")},
		"sys/class/net/x":                  {Data: []byte("../../nowhere"), Mode: fs.ModeSymlink},
		"proc/sys/kernel/osrelease":        {Data: []byte("6.1.0\n")},
		"proc/driver/nvidia/gpus/0000:1/x": {},
	}
	got := machine.Read(root, machine.Place{Data: "/", Cores: 5})
	if got.MemoryBytes != 0 || got.Cores != 5 || len(got.Interfaces) != 0 || len(got.Model) > 64 || !strings.HasPrefix(got.Model, "éé") || got.Kernel != "6.1.0" {
		t.Errorf("Read = %+v", got)
	}
	if told := strings.Join(got.Unread, "; "); !strings.Contains(told, "/proc/meminfo: not a regular file") || !strings.Contains(told, "long.json") {
		t.Errorf("not read: %s", told)
	}
}

func TestCapabilitiesAreValidForMargo(t *testing.T) {
	place := machine.Place{Data: t.TempDir(), Cores: runtime.NumCPU(), Architecture: runtime.GOARCH}
	facts := machine.Read(os.DirFS("/"), place)
	facts.Input = []string{"keyboard"}
	facts.Runtime = machine.Runtime{Containerd: "v2.4.2", Runc: "1.3.0\n", Snapshotter: "overlayfs", Features: []string{"checkpoint"}, Others: []string{"kata"}}
	c := facts.Capabilities(margo.DeviceProperties{ID: "press-07", Vendor: "Acme", ModelNumber: "E1", SerialNumber: "7"},
		map[string]any{"acme.example/site": "graz", machine.LabelKernel: "mine"})
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := margo.ParseDeviceCapabilities("capabilities.json", data); err != nil {
		t.Errorf("this machine's capabilities are not valid:\n%v\n%s", err, data)
	}
	if c.Properties.Memory == "0Mi" || c.Properties.Vendor != "Acme" || c.Labels[machine.LabelKernel] != "mine" {
		t.Errorf("capabilities of this machine: %s", data)
	}
	for label, want := range map[string]any{
		machine.LabelInput: []string{"keyboard"}, machine.LabelContainerd: "v2.4.2", machine.LabelRunc: "1.3.0", machine.LabelSnapshotter: "overlayfs",
		machine.LabelRuntimeFeatures: []string{"checkpoint"}, machine.LabelRuntimes: []string{"kata"},
	} {
		if d := cmp.Diff(want, c.Labels[label]); d != "" {
			t.Errorf("label %s (-want +got):\n%s", label, d)
		}
	}
	tree := pc
	pcFacts := machine.Read(plant(t, t.TempDir(), tree), place)
	c = pcFacts.Capabilities(margo.DeviceProperties{ID: "press-07", ModelNumber: "E1"}, nil)
	if p := c.Properties; p.Vendor != "Dell Inc." || p.ModelNumber != "E1" || p.SerialNumber != "8XK2P3" {
		t.Errorf("identity %+v", p)
	}
	if p := (machine.Facts{}).Capabilities(margo.DeviceProperties{ID: "press-07"}, nil).Properties; p.Vendor != "unknown" || p.SerialNumber != "press-07" {
		t.Errorf("identity of a machine that says nothing %+v", p)
	}
	// A deployment can ask for what was found.
	for ask, fits := range map[string]bool{"kvm": true, "selinux": false} {
		doc := `{"eligibilityRules":[{"labelSelector":{"matchExpressions":[{"key":"longshore.dev/features","operator":"ContainsAny","itemSelector":{"matchExpressions":[{"key":"","operator":"In","values":["` + ask + `"]}]}}]}}]}`
		var d margo.DeviceConstraints
		if err := json.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		if err := d.Check(&c); (err == nil) != fits {
			t.Errorf("constraint %s: %v", ask, err)
		}
	}
}

func TestSmallMovesOfMemoryDoNotCount(t *testing.T) {
	was := machine.Facts{MemoryBytes: 1000 << 20, StorageBytes: 1000 << 30}
	now := machine.Facts{MemoryBytes: 990 << 20, StorageBytes: 500 << 30}
	if got := now.Since(was); got.MemoryBytes != was.MemoryBytes || got.StorageBytes != now.StorageBytes {
		t.Errorf("Since = %+v", got)
	}
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		machine.Read(os.DirFS("/"), machine.Place{Data: "/"})
	}
}
