package workload

// Resources are hard limits; zero is none.
type Resources struct {
	NanoCPUs    int64 // 1e9 is one core
	MemoryBytes int64
	PIDs        int64

	CPUShares         uint64  `json:",omitzero"`
	CPUSet            string  `json:",omitzero"` // "0-2,4"
	CPUQuota          int64   `json:",omitzero"` // microseconds of a period, in place of NanoCPUs
	CPUPeriod         uint64  `json:",omitzero"` // microseconds; 0: 100,000
	CPURealtime       int64   `json:",omitzero"` // microseconds of CPURealtimePeriod
	CPURealtimePeriod uint64  `json:",omitzero"`
	MemoryReservation int64   `json:",omitzero"`  // bytes that reclaim spares
	MemorySwap        int64   `json:",omitzero"`  // memory and swap together, bytes; -1: unlimited; 0: MemoryBytes, so none
	Swappiness        *uint64 `json:",omitempty"` // 0 to 100; nil: the kernel's
	OOMScoreAdj       int     `json:",omitzero"`
	OOMKillDisable    bool    `json:",omitzero"`
	ShmBytes          int64   `json:",omitzero"` // of /dev/shm; 0: 64 MiB
	CgroupParent      string  `json:",omitzero"`
	Blkio             *Blkio  `json:",omitempty"`
}

// Blkio shares and limits block devices.
type Blkio struct {
	Weight        uint16      `json:",omitzero"` // 10 to 1000
	WeightDevices []BlkioRate `json:",omitempty"`
	ReadBps       []BlkioRate `json:",omitempty"`
	WriteBps      []BlkioRate `json:",omitempty"`
	ReadIOps      []BlkioRate `json:",omitempty"`
	WriteIOps     []BlkioRate `json:",omitempty"`
}

// BlkioRate is a weight, or bytes or operations a second, of one device.
type BlkioRate struct {
	Path string // "/dev/sda"
	Rate uint64
}

// Ulimit is one of setrlimit(2); -1 is no limit.
type Ulimit struct {
	Name       string // "nofile"
	Soft, Hard int64
}

// Device is a device node of the host.
type Device struct {
	HostPath      string
	ContainerPath string // "": HostPath
	Permissions   string // of "rwm"; "": all
	At            int    `json:"-"` // its place in the list of the Compose file, for messages
}

// DeviceRequest asks for devices by what they can do, as Compose gpus and reservations.devices.
type DeviceRequest struct {
	Driver       string            `json:",omitzero"` // "": nvidia
	Count        int               `json:",omitzero"` // -1: all; 0: those of IDs
	IDs          []string          `json:",omitempty"`
	Capabilities []string          `json:",omitempty"`
	Options      map[string]string `json:",omitempty"`
}

// MissingLimit is a limit that the control groups of a machine do not have.
type MissingLimit struct {
	Key  string // in the Compose file
	What string // "limits of memory"
	Hint string // "": none
}
