package config

import (
	"math"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

var sizePattern = strict.Expression(`^([0-9]{1,15})(B|KiB|MiB|GiB|Ki|Mi|Gi|k|M|G)?$`)

var units = map[string]int64{
	"": 1, "B": 1, "k": 1e3, "M": 1e6, "G": 1e9,
	"Ki": 1 << 10, "KiB": 1 << 10, "Mi": 1 << 20, "MiB": 1 << 20, "Gi": 1 << 30, "GiB": 1 << 30,
}

// size reads a number of bytes: 10485760, 10MiB, 10Mi or 10M.
func size(n *strict.Node, fallback int64) int64 {
	if n == nil {
		return fallback
	}
	if n.Kind() == strict.Number {
		if v := n.Int64(); v > 0 {
			return v
		}
		n.Faultf("must be more than nothing")
		return fallback
	}
	s := n.Text()
	m := sizePattern.Regexp().FindStringSubmatch(s)
	if m == nil {
		n.HintFaultf("write it like 10MiB", "not a size")
		return fallback
	}
	v, err := strconv.ParseInt(m[1], 10, 64)
	if unit := units[m[2]]; err != nil || v <= 0 || v > math.MaxInt64/unit {
		n.Faultf("out of range")
		return fallback
	}
	return v * units[m[2]]
}

// share reads a number of bytes, or a percentage of something: 512MiB or 5%.
func share(n *strict.Node) (bytes int64, percent int) {
	if n == nil || n.Kind() == strict.Number {
		return size(n, 0), 0
	}
	s, ok := strings.CutSuffix(n.Text(), "%")
	if !ok {
		return size(n, 0), 0
	}
	p, err := strconv.Atoi(s)
	if err != nil || p < 1 || p > 90 {
		n.HintFaultf("write it like 5% or 512MiB", "not a percentage between 1 and 90")
		return 0, 0
	}
	return 0, p
}
