package usage

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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
	err := figures{
		"2.1": &u.PIDs, "2.2": &u.PIDsLimit, "3.1.1": &cpu, "3.2.3": &throttled,
		"4.16": &hierarchical, "4.18": &u.MemoryCache, "4.30": &inactive, "4.33.1": &own, "4.33.2": &usage,
		"5.1": func(row []byte) error { return blockEntry(u, row) }, "9.3": &u.OOMKills,
	}.read(data, "")
	u.CPU, u.Throttled = nano(cpu), nano(throttled)
	u.Memory = usage - min(usage, inactive)
	u.MemoryLimit = hierarchical
	if own > 0 && (hierarchical == 0 || own < hierarchical) {
		u.MemoryLimit = own
	}
	return err
}

// blockEntry adds one row of v1's table: an operation, a device, bytes.
func blockEntry(u *workload.Usage, row []byte) error {
	var op string
	var bytes uint64
	err := fields(row, func(n protowire.Number, v uint64, sub []byte) error {
		switch n {
		case 1:
			op = string(sub)
		case 5:
			bytes = v
		}
		return nil
	})
	switch op {
	case "Read", "read":
		u.BlockRead += bytes
	case "Write", "write":
		u.BlockWritten += bytes
	}
	return err
}

func measuredV2(u *workload.Usage, data []byte) error {
	var cpu, throttled, usage, inactive uint64
	err := figures{
		"1.1": &u.PIDs, "1.2": &u.PIDsLimit, "2.1": &cpu, "2.6": &throttled,
		"4.2": &u.MemoryCache, "4.13": &inactive, "4.32": &usage, "4.33": &u.MemoryLimit,
		"6.1.3": &u.BlockRead, "6.1.4": &u.BlockWritten, "8.5": &u.OOMKills,
	}.read(data, "")
	u.CPU, u.Throttled = micro(cpu), micro(throttled)
	u.Memory = usage - min(usage, inactive)
	return err
}

func nano(n uint64) time.Duration { return time.Duration(min(n, math.MaxInt64)) }

func micro(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}

// figures are the wanted fields of a message, by their numbers from the outermost message on: a *uint64 gets the sum of all fields of that
// number, a func([]byte) error each message.
type figures map[string]any

// read reads a message whose path is at, "" or with a dot at its end.
func (f figures) read(data []byte, at string) error {
	return fields(data, func(n protowire.Number, v uint64, sub []byte) error {
		path := at + strconv.Itoa(int(n))
		switch to := f[path].(type) {
		case *uint64:
			*to += v
		case func([]byte) error:
			return to(sub)
		default:
			for wanted := range f {
				if strings.HasPrefix(wanted, path+".") {
					return f.read(sub, path+".")
				}
			}
		}
		return nil
	})
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
