package machine_test

import (
	"os"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

func TestReadTellsWhatTheFilesSay(t *testing.T) {
	root := fstest.MapFS{
		"proc/meminfo":                  {Data: []byte("MemFree:  1 kB\nMemTotal:    2097152 kB\nSwapTotal: 0 kB\n")},
		"sys/class/net/eth0/device/x":   {},
		"sys/class/net/eth1/device/x":   {},
		"sys/class/net/wlan0/device/x":  {},
		"sys/class/net/wlan0/wireless/": {Mode: os.ModeDir},
		"sys/class/net/lo/mtu":          {},
	}
	got := machine.Read(root, "/no/such/folder/yet", 4, "arm64")
	if got.StorageBytes == 0 {
		t.Error("StorageBytes = 0, want the size of the nearest folder's file system")
	}
	got.StorageBytes = 0
	want := machine.Facts{Cores: 4, Architecture: "arm64", MemoryBytes: 2 << 30, Interfaces: []string{"ethernet", "wifi"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
	if got := machine.Read(fstest.MapFS{}, "/", 1, "arm"); got.MemoryBytes != 0 || got.Interfaces != nil {
		t.Errorf("Read of an empty root = %+v, want unknowns", got)
	}
}

func TestCapabilitiesAreValidForMargo(t *testing.T) {
	facts := machine.Read(os.DirFS("/"), t.TempDir(), runtime.NumCPU(), runtime.GOARCH)
	c := facts.Capabilities(margo.DeviceProperties{ID: "press-07", Vendor: "Acme", ModelNumber: "E1", SerialNumber: "7"},
		map[string]any{"acme.example/site": "graz"})
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := margo.ParseDeviceCapabilities("capabilities.json", data); err != nil {
		t.Errorf("this machine's capabilities are not valid:\n%v\n%s", err, data)
	}
	if c.Properties.Memory == "0Mi" {
		t.Error("memory of this machine = 0Mi")
	}
}
