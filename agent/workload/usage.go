package workload

import "time"

// Usage is what a running container has used since its process started, and what it holds now. The kernel's two versions of
// control groups give the same figures. What the kernel does not count is zero.
type Usage struct {
	ID string
	At time.Time // of the look

	CPU       time.Duration // of all cores together
	Throttled time.Duration // held back by its CPU limit

	Memory      uint64 // bytes in use, without file content that the kernel can drop at once
	MemoryCache uint64 // bytes of file content
	MemoryLimit uint64 // bytes; 0: none
	OOMKills    uint64 // processes that were killed for lack of memory

	PIDs      uint64 // processes and threads
	PIDsLimit uint64 // 0: none

	NetworkReceived    uint64 // bytes, of all interfaces but loopback; zero in the host's network
	NetworkTransmitted uint64
	NetworkErrors      uint64 // packets dropped or damaged, both ways

	BlockRead    uint64 // bytes
	BlockWritten uint64
}

// LogUsage is what a replica's output takes, running or not.
type LogUsage struct {
	Project string
	Service string
	Replica int
	Bytes   int64  // in all files
	Dropped uint64 // bytes that could not be kept since the agent started: the disk was full
}

// Space is how much room a file system has, in bytes.
type Space struct {
	Dir  string // something on it
	Size int64
	Free int64
	Keep int64 // what pulls leave free
}
