package status

import (
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Usage is what one running container uses. Its JSON keys are stable; numbers that only grow begin with the
// container's start.
type Usage struct {
	ID         string    `json:"id"`
	Deployment string    `json:"deployment"`
	Component  string    `json:"component"`
	Service    string    `json:"service"`
	Replica    int       `json:"replica"`
	At         time.Time `json:"at"`

	CPUSeconds          float64 `json:"cpuSeconds"`
	CPUThrottledSeconds float64 `json:"cpuThrottledSeconds"`
	// CPUPercent is the share of one core since the look before; null: there was none. Who asks twice fills it in.
	CPUPercent *float64 `json:"cpuPercent"`

	MemoryBytes      uint64 `json:"memoryBytes"` // without what the kernel can drop at once
	MemoryCacheBytes uint64 `json:"memoryCacheBytes"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"` // 0: none
	OOMKills         uint64 `json:"oomKills"`
	PIDs             uint64 `json:"pids"`
	PIDsLimit        uint64 `json:"pidsLimit"` // 0: none

	NetworkReceivedBytes    uint64 `json:"networkReceivedBytes"`
	NetworkTransmittedBytes uint64 `json:"networkTransmittedBytes"`
	NetworkErrors           uint64 `json:"networkErrors"`
	BlockReadBytes          uint64 `json:"blockReadBytes"`
	BlockWrittenBytes       uint64 `json:"blockWrittenBytes"`

	LogBytes        int64  `json:"logBytes"`        // of the replica's output, on the disk
	LogDroppedBytes uint64 `json:"logDroppedBytes"` // since the agent started
}

// Usages are those of the chosen containers that run, from what the runtime measured of all.
func Usages(chosen []Container, usage []workload.Usage, logs []workload.LogUsage) []Usage {
	byID := map[string]workload.Usage{}
	for _, u := range usage {
		byID[u.ID] = u
	}
	type replica struct {
		project, service string
		number           int
	}
	output := map[replica]workload.LogUsage{}
	for _, l := range logs {
		output[replica{l.Project, l.Service, l.Replica}] = l
	}
	out := []Usage{}
	for _, c := range chosen {
		u, ok := byID[c.ID]
		if !ok {
			continue
		}
		delete(byID, c.ID) // named twice
		l := output[replica{c.Project, c.Service, c.Replica}]
		out = append(out, Usage{
			ID: c.ID, Deployment: c.Deployment, Component: c.Component, Service: c.Service, Replica: c.Replica, At: u.At,
			CPUSeconds: u.CPU.Seconds(), CPUThrottledSeconds: u.Throttled.Seconds(),
			MemoryBytes: u.Memory, MemoryCacheBytes: u.MemoryCache, MemoryLimitBytes: u.MemoryLimit, OOMKills: u.OOMKills,
			PIDs: u.PIDs, PIDsLimit: u.PIDsLimit, NetworkReceivedBytes: u.NetworkReceived, NetworkTransmittedBytes: u.NetworkTransmitted,
			NetworkErrors: u.NetworkErrors, BlockReadBytes: u.BlockRead, BlockWrittenBytes: u.BlockWritten,
			LogBytes: l.Bytes, LogDroppedBytes: l.Dropped,
		})
	}
	return out
}
