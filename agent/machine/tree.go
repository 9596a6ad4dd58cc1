package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode"
)

const (
	maxFile    = 64 << 10 // bytes read of a file
	maxEntries = 1024     // read of a folder
	maxName    = 64       // bytes kept of a name that a device gives itself
)

// tree reads what the kernel and drivers say of the machine. What is not there is empty; what cannot be read is empty and noted.
type tree struct {
	root   fs.FS
	unread []string
}

func (t *tree) note(name string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) { // it was unplugged just now
		return
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	if s := fmt.Sprintf("/%s: %v", name, err); !slices.Contains(t.unread, s) {
		t.unread = append(t.unread, s)
	}
}

// bytes are the first limit bytes of a regular file: opening anything else could wait for ever.
func (t *tree) bytes(name string, limit int64) []byte {
	info, err := fs.Stat(t.root, name)
	if err != nil {
		t.note(name, err)
		return nil
	}
	if !info.Mode().IsRegular() {
		t.note(name, errors.New("not a regular file"))
		return nil
	}
	f, err := t.root.Open(name)
	if err != nil {
		t.note(name, err)
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		t.note(name, err)
		return nil
	}
	return b
}

// text is a file without the spaces and NUL bytes around it.
func (t *tree) text(name string) string {
	return strings.Trim(string(t.bytes(name, maxFile)), "\x00 \t\n")
}

// name is a file with a name that a device or its firmware gives itself.
func (t *tree) name(name string) string { return clean(t.text(name)) }

// value is the value of KEY in a file of lines KEY=value; "": there is none.
func (t *tree) value(name, key string) string {
	for line := range strings.Lines(t.text(name)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return v
		}
	}
	return ""
}

// list are the names in a folder that begin with prefix, sorted.
func (t *tree) list(dir, prefix string) []string {
	f, err := t.root.Open(dir)
	if err != nil {
		t.note(dir, err)
		return nil
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil
	}
	entries, err := d.ReadDir(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		t.note(dir, err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out
}

func (t *tree) has(name string) bool {
	_, err := fs.Stat(t.root, name)
	return err == nil
}

// follow is the place that a symbolic link leads to; "": there is no link.
func (t *tree) follow(name string) string {
	to, err := fs.ReadLink(t.root, name)
	if err != nil {
		return ""
	}
	if path.IsAbs(to) {
		return strings.TrimPrefix(path.Clean(to), "/")
	}
	return path.Join(path.Dir(name), to)
}

// device is the hardware behind an entry of a class, as a path below sys/devices; "": there is none, the entry is the kernel's own.
func (t *tree) device(class, name string) string {
	at := cmp.Or(t.follow(path.Join("sys/class", class, name)), path.Join("sys/class", class, name))
	d := t.follow(path.Join(at, "device"))
	if strings.HasPrefix(d, "sys/devices/virtual/") || strings.HasPrefix(d, "sys/devices/faux/") {
		return ""
	}
	return d
}

// driver is the name of a device's driver; "": it has none.
func (t *tree) driver(device string) string {
	if d := t.follow(path.Join(device, "driver")); d != "" {
		return path.Base(d)
	}
	return ""
}

// vendors of PCI, as most people write them. Other numbers are left out: the names are in no file of the kernel.
var vendors = map[string]string{
	"0x1002": "AMD", "0x10de": "NVIDIA", "0x13b5": "Arm", "0x1ae0": "Google", "0x1af4": "Red Hat", "0x1d05": "Tongfang", "0x8086": "Intel",
}

// maker is who made a device, and its model, as its bus says; "": not known.
func (t *tree) maker(device string) (manufacturer, model string) {
	for _, d := range []string{device, path.Dir(device)} { // of USB the interface is below the device
		if product := t.name(path.Join(d, "product")); product != "" {
			return t.name(path.Join(d, "manufacturer")), product
		}
	}
	if v := t.text(path.Join(device, "vendor")); v != "" {
		return vendors[v], ""
	}
	first, _, _ := strings.Cut(t.text(path.Join(device, "of_node/compatible")), "\x00")
	manufacturer, model, _ = strings.Cut(clean(first), ",")
	return manufacturer, model
}

// clean makes a name of what a device says, which may be anything: printable, short, without spaces around it.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	if len(s) > maxName {
		s = strings.ToValidUTF8(s[:maxName], "")
	}
	return strings.Join(strings.Fields(s), " ")
}
