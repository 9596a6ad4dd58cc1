package machine

import (
	"maps"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Codes of the kernel's events (include/uapi/linux/input-event-codes.h).
const (
	relX       = 0x00
	absX       = 0x00
	absMTX     = 0x35
	keyEsc     = 1
	keyS       = 31
	btnLeft    = 0x110
	btnTouch   = 0x14a
	propDirect = 1 // what is touched is what is shown
)

// input are the kinds of devices that people enter something with: Margo's peripherals have no word for them. What has only a few keys,
// as a power button or a headset, is none; a scanner of bar codes types like a keyboard.
func (t *tree) input() []string {
	seen := map[string]bool{}
	for _, n := range t.list("sys/class/input", "input") {
		if t.device("input", n) == "" {
			continue
		}
		dir := path.Join("sys/class/input", n)
		keys, rel, abs := t.bitmap(path.Join(dir, "capabilities/key")), t.bitmap(path.Join(dir, "capabilities/rel")), t.bitmap(path.Join(dir, "capabilities/abs"))
		switch {
		case keys.all(keyEsc, keyS): // as udev tells them: from the first row to the third
			seen["keyboard"] = true
		case keys.has(btnTouch) && (abs.has(absX) || abs.has(absMTX)):
			if t.bitmap(path.Join(dir, "properties")).has(propDirect) {
				seen["touchscreen"] = true
			} else {
				seen["touchpad"] = true
			}
		case keys.has(btnLeft) && rel.has(relX):
			seen["mouse"] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// bitmap are the words of a set of bits, the lowest first.
type bitmap []uint

// bitmap reads one as the kernel writes it: words in hexadecimal, the highest first. What is none is empty.
func (t *tree) bitmap(name string) bitmap {
	words := strings.Fields(t.text(name))
	slices.Reverse(words)
	out := make(bitmap, len(words))
	for i, w := range words {
		n, err := strconv.ParseUint(w, 16, bits.UintSize)
		if err != nil {
			return nil
		}
		out[i] = uint(n)
	}
	return out
}

func (b bitmap) has(bit int) bool {
	word := bit / bits.UintSize
	return word < len(b) && b[word]>>(bit%bits.UintSize)&1 == 1
}

// all reports whether it has the bits from first to last.
func (b bitmap) all(first, last int) bool {
	for bit := first; bit <= last; bit++ {
		if !b.has(bit) {
			return false
		}
	}
	return true
}
