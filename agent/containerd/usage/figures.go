package usage

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// The two kinds of figures that a shim sends. They are decoded field by field: the generated decoders would add more to the program than
// all code here.
const (
	metricsV1 = "io.containerd.cgroups.v1.Metrics"
	metricsV2 = "io.containerd.cgroups.v2.Metrics"
	// maxMetrics bounds one container's figures; hundreds of block devices make some 30 KiB.
	maxMetrics = 1 << 20
	// unlimited is slightly below the kernel's value for "no limit": v1 rounds it down to pages.
	unlimited = math.MaxInt64 &^ (1<<20 - 1)
)

// measured reads a shim's figures.
func measured(kind string, data []byte) (workload.Usage, error) {
	var u workload.Usage
	if len(data) > maxMetrics {
		return u, fmt.Errorf("figures of %d bytes: %w", len(data), fault.ErrTooLarge)
	}
	var err error
	switch kind {
	case metricsV1:
		err = measuredV1(&u, data)
	case metricsV2:
		err = measuredV2(&u, data)
	default:
		return u, fmt.Errorf("figures of kind %.64q: %w", kind, fault.ErrUnsupported)
	}
	u.MemoryLimit, u.PIDsLimit = limit(u.MemoryLimit), limit(u.PIDsLimit)
	return u, err
}

// limit is 0 for no limit.
func limit(n uint64) uint64 {
	if n >= unlimited {
		return 0
	}
	return n
}

func measuredV1(u *workload.Usage, data []byte) error {
	var cpu, throttled, usage, inactive, own, hierarchical uint64
	err := fields(data, func(n protowire.Number, _ uint64, sub []byte) error {
		switch n {
		case 2: // pids
			return fields(sub, pick(map[protowire.Number]*uint64{1: &u.PIDs, 2: &u.PIDsLimit}))
		case 3: // cpu: usage, throttling
			return fields(sub, func(n protowire.Number, _ uint64, sub []byte) error {
				switch n {
				case 1:
					return fields(sub, pick(map[protowire.Number]*uint64{1: &cpu}))
				case 2:
					return fields(sub, pick(map[protowire.Number]*uint64{3: &throttled}))
				}
				return nil
			})
		case 4: // memory
			return fields(sub, func(n protowire.Number, v uint64, sub []byte) error {
				switch n {
				case 16:
					hierarchical = v
				case 18:
					u.MemoryCache = v
				case 30:
					inactive = v
				case 33:
					return fields(sub, pick(map[protowire.Number]*uint64{1: &own, 2: &usage}))
				}
				return nil
			})
		case 5: // blkio
			return fields(sub, func(n protowire.Number, _ uint64, sub []byte) error {
				if n != 1 { // bytes, of all below
					return nil
				}
				return blockEntry(u, sub)
			})
		case 9: // memory_oom_control
			return fields(sub, pick(map[protowire.Number]*uint64{3: &u.OOMKills}))
		}
		return nil
	})
	u.CPU, u.Throttled = nano(cpu), nano(throttled)
	u.Memory = usage - min(usage, inactive)
	u.MemoryLimit = hierarchical
	if own > 0 && (hierarchical == 0 || own < hierarchical) {
		u.MemoryLimit = own
	}
	return err
}

// blockEntry adds one row of v1's table: an operation, a device, bytes.
func blockEntry(u *workload.Usage, data []byte) error {
	var op string
	var bytes uint64
	if err := fields(data, func(n protowire.Number, v uint64, sub []byte) error {
		switch n {
		case 1:
			op = string(sub)
		case 5:
			bytes = v
		}
		return nil
	}); err != nil {
		return err
	}
	switch op {
	case "Read", "read":
		u.BlockRead += bytes
	case "Write", "write":
		u.BlockWritten += bytes
	}
	return nil
}

func measuredV2(u *workload.Usage, data []byte) error {
	var cpu, throttled, usage, inactive uint64
	err := fields(data, func(n protowire.Number, _ uint64, sub []byte) error {
		switch n {
		case 1: // pids
			return fields(sub, pick(map[protowire.Number]*uint64{1: &u.PIDs, 2: &u.PIDsLimit}))
		case 2: // cpu, microseconds
			return fields(sub, pick(map[protowire.Number]*uint64{1: &cpu, 6: &throttled}))
		case 4: // memory
			return fields(sub, pick(map[protowire.Number]*uint64{2: &u.MemoryCache, 13: &inactive, 32: &usage, 33: &u.MemoryLimit}))
		case 6: // io
			return fields(sub, func(n protowire.Number, _ uint64, sub []byte) error {
				if n != 1 {
					return nil
				}
				var read, written uint64
				err := fields(sub, pick(map[protowire.Number]*uint64{3: &read, 4: &written}))
				u.BlockRead, u.BlockWritten = u.BlockRead+read, u.BlockWritten+written
				return err
			})
		case 8: // memory_events
			return fields(sub, pick(map[protowire.Number]*uint64{5: &u.OOMKills}))
		}
		return nil
	})
	u.CPU, u.Throttled = micro(cpu), micro(throttled)
	u.Memory = usage - min(usage, inactive)
	return err
}

func nano(n uint64) time.Duration { return time.Duration(min(n, math.MaxInt64)) }

func micro(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}

// pick stores the numbers of some fields.
func pick(to map[protowire.Number]*uint64) func(protowire.Number, uint64, []byte) error {
	return func(n protowire.Number, v uint64, _ []byte) error {
		if p := to[n]; p != nil {
			*p = v
		}
		return nil
	}
}

// fields calls f for each field of a message: with its number for a varint, with its bytes for everything that has a length.
func fields(data []byte, f func(n protowire.Number, v uint64, sub []byte) error) error {
	for len(data) > 0 {
		n, typ, k := protowire.ConsumeTag(data)
		if k < 0 {
			return fmt.Errorf("figures: %w: %w", fault.ErrInvalid, protowire.ParseError(k))
		}
		data = data[k:]
		var v uint64
		var sub []byte
		switch typ {
		case protowire.VarintType:
			v, k = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			sub, k = protowire.ConsumeBytes(data)
		default:
			k = protowire.ConsumeFieldValue(n, typ, data)
		}
		if k < 0 {
			return fmt.Errorf("figures: %w: %w", fault.ErrInvalid, protowire.ParseError(k))
		}
		data = data[k:]
		if typ != protowire.VarintType && typ != protowire.BytesType {
			continue
		}
		if err := f(n, v, sub); err != nil {
			return err
		}
	}
	return nil
}
