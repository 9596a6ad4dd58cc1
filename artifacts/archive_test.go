package artifacts_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// tarball writes entries as they are told, with whatever is wrong with them.
func tarball(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			content, h.Uname = h.Uname, "" // tests put the content there
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dir(name string) tar.Header          { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func reg(name, content string) tar.Header { return tar.Header{Name: name, Uname: content} }
func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func hardlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func special(name string, k byte) tar.Header {
	return tar.Header{Typeflag: k, Name: name, Devmajor: 1, Devminor: 3}
}

func TestReadArchive(t *testing.T) {
	data := tarball(t,
		tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "git"}},
		dir("./"), dir("./app/"), reg("./app/compose.yaml", "services: {}\n"),
		tar.Header{Name: "app/run.sh", Uname: "#!/bin/sh\n", Mode: 0o6755, Uid: 1000, ModTime: time.Unix(1e9, 0)},
		reg("app/config/deep/a.conf", "a"), symlink("app/config/b.conf", "deep/../deep/a.conf"), symlink("app/c.conf", "config/b.conf"), hardlink("app/d.conf", "app/config/deep/a.conf"),
	)
	a, err := artifacts.ReadArchive(data)
	if err != nil {
		t.Fatal(err)
	}
	if a.Root != "app" || string(a.Compose) != "services: {}\n" || a.Lock != nil {
		t.Errorf("ReadArchive = %+v", a)
	}
	if err := fstest.TestFS(a.FS, "compose.yaml", "run.sh", "config/deep/a.conf", "config/b.conf", "c.conf", "d.conf"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"config/b.conf", "c.conf", "d.conf"} {
		if b, err := fs.ReadFile(a.FS, name); err != nil || string(b) != "a" {
			t.Errorf("%s = %q, %v, want what the link leads to", name, b, err)
		}
	}
	for name, want := range map[string]fs.FileMode{"run.sh": 0o755, "c.conf": 0o644, "config": fs.ModeDir | 0o755} {
		if i, err := fs.Stat(a.FS, name); err != nil || i.Mode() != want {
			t.Errorf("mode of %s = %v, %v, want %v", name, i, err, want)
		}
	}
	for _, name := range []string{"../compose.yaml", "/compose.yaml", "nothing", "compose.yaml/x", "."} {
		if b, err := fs.ReadFile(a.FS, name); err == nil {
			t.Errorf("ReadFile(%q) = %q, want an error", name, b)
		}
	}
}

func TestReadArchiveRefuses(t *testing.T) {
	c := reg("app/compose.yaml", "services: {}\n")
	good := tarball(t, c, reg("app/big", strings.Repeat("0123456789", 1000)))
	raw := func(edit func(plain []byte) []byte) []byte {
		z, err := gzip.NewReader(bytes.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(edit(plain)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	many := []tar.Header{c}
	for i := range artifacts.MaxEntries {
		many = append(many, reg(fmt.Sprintf("app/%d", i), ""))
	}
	chain := []tar.Header{c, reg("app/0", "x")}
	for i := range 20 {
		chain = append(chain, symlink(fmt.Sprintf("app/%d", i+1), fmt.Sprint(i)))
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
		is   error
	}{
		"nothing":              {nil, "not gzip", fault.ErrInvalid},
		"wrong type":           {[]byte("services: {}\n"), "not gzip", fault.ErrInvalid},
		"no tar":               {raw(func([]byte) []byte { return []byte(strings.Repeat("x", 1024)) }), "damaged or truncated", fault.ErrInvalid},
		"empty":                {tarball(t), "it is empty", fault.ErrInvalid},
		"truncated gzip":       {good[:len(good)/2], "damaged or truncated", fault.ErrInvalid},
		"truncated tail":       {good[:len(good)-4], "damaged or truncated", fault.ErrInvalid},
		"truncated tar":        {raw(func(p []byte) []byte { return p[:3000] }), "damaged or truncated", fault.ErrInvalid},
		"damaged":              {append(append(bytes.Clone(good[:40]), good[40]^0xff), good[41:]...), "damaged or truncated", fault.ErrInvalid},
		"data behind the tar":  {raw(func(p []byte) []byte { return append(p, "hidden"...) }), "data after the end", fault.ErrInvalid},
		"data behind the gzip": {append(bytes.Clone(good), "hidden"...), "damaged or truncated", fault.ErrInvalid},
		"second gzip member":   {append(bytes.Clone(good), good...), "data after the end", fault.ErrInvalid},
		"too large":            {make([]byte, artifacts.MaxArchive+1), "more than 16777216", fault.ErrTooLarge},
		"one large file":       {tarball(t, c, reg("app/zero", strings.Repeat("\x00", artifacts.MaxUnpacked))), "bytes unpacked", fault.ErrTooLarge},
		"bomb of many":         {tarball(t, c, reg("app/a", strings.Repeat("\x00", artifacts.MaxUnpacked/2)), reg("app/b", strings.Repeat("\x00", artifacts.MaxUnpacked/2))), "bytes unpacked", fault.ErrTooLarge},
		"bomb behind the tar": {raw(func(p []byte) []byte {
			return append(p, make([]byte, artifacts.MaxUnpacked+artifacts.MaxEntries*4096)...)
		}), "bytes unpacked", fault.ErrTooLarge},
		"bomb of links":       {tarball(t, c, reg("app/a", strings.Repeat("\x00", artifacts.MaxUnpacked/2)), hardlink("app/b", "app/a"), hardlink("app/c", "app/a")), "bytes unpacked", fault.ErrTooLarge},
		"too many":            {tarball(t, many...), "more than 4096 entries", fault.ErrTooLarge},
		"absolute":            {tarball(t, c, reg("/etc/passwd", "")), `"/etc/passwd" is no safe relative path`, fault.ErrInvalid},
		"dot dot":             {tarball(t, c, reg("app/../../etc/passwd", "")), "is no safe relative path", fault.ErrInvalid},
		"dot dot inside":      {tarball(t, c, reg("app/x/../y", "")), "is no safe relative path", fault.ErrInvalid},
		"not UTF-8":           {tarball(t, c, tar.Header{Name: "app/\xff", Format: tar.FormatGNU}), "is no safe relative path", fault.ErrInvalid},
		"twice":               {tarball(t, c, c), `"app/compose.yaml" is there twice`, fault.ErrInvalid},
		"twice in disguise":   {tarball(t, c, reg("./app/compose.yaml", "x")), "is there twice", fault.ErrInvalid},
		"link and file":       {tarball(t, c, symlink("app/a", "compose.yaml"), reg("app/a", "")), "is there twice", fault.ErrInvalid},
		"character device":    {tarball(t, c, special("app/null", tar.TypeChar)), "is neither file nor directory nor link", fault.ErrInvalid},
		"block device":        {tarball(t, c, special("app/sda", tar.TypeBlock)), "is neither file nor directory nor link", fault.ErrInvalid},
		"fifo":                {tarball(t, c, special("app/pipe", tar.TypeFifo)), "is neither file nor directory nor link", fault.ErrInvalid},
		"link out":            {tarball(t, c, symlink("app/a", "../../etc/passwd")), "not in the archive's directory", fault.ErrInvalid},
		"link absolute":       {tarball(t, c, symlink("app/a", "/etc/passwd")), "an absolute path", fault.ErrInvalid},
		"hard link out":       {tarball(t, c, hardlink("app/a", "../etc/passwd")), "is no safe relative path", fault.ErrInvalid},
		"hard link absolute":  {tarball(t, c, hardlink("app/a", "/etc/passwd")), "is no safe relative path", fault.ErrInvalid},
		"link to nothing":     {tarball(t, c, symlink("app/a", "b")), "not in the archive's directory", fault.ErrInvalid},
		"link to itself":      {tarball(t, c, symlink("app/a", "a")), "not in the archive's directory", fault.ErrInvalid},
		"links in a circle":   {tarball(t, c, symlink("app/a", "b"), symlink("app/b", "a")), "not in the archive's directory", fault.ErrInvalid},
		"long chain":          {tarball(t, chain...), "not in the archive's directory", fault.ErrInvalid},
		"link to a directory": {tarball(t, c, dir("app/d"), symlink("app/a", "d")), "links to the directory", fault.ErrUnsupported},
		"file below a link":   {tarball(t, c, symlink("app/a", "compose.yaml"), reg("app/a/b", "")), "which is no directory", fault.ErrInvalid},
		"file below a file":   {tarball(t, c, reg("app/compose.yaml/b", "")), "which is no directory", fault.ErrInvalid},
		"file at the top":     {tarball(t, c, reg("README", "")), `"README" is not in a directory`, fault.ErrInvalid},
		"two directories":     {tarball(t, c, reg("b/compose.yaml", "")), `"app" and "b" at the top`, fault.ErrInvalid},
		"no compose.yaml":     {tarball(t, reg("app/x/compose.yaml", "")), "there is no compose.yaml", fault.ErrInvalid},
		"other name":          {tarball(t, reg("app/docker-compose.yml", "")), "there is no compose.yaml", fault.ErrInvalid},
		"compose directory":   {tarball(t, dir("app/compose.yaml")), "compose.yaml is a directory", fault.ErrInvalid},
		"large compose.yaml":  {tarball(t, reg("app/compose.yaml", strings.Repeat("#", 1<<20+1))), "compose.yaml has 1048577 bytes", fault.ErrTooLarge},
		"bad lock":            {tarball(t, c, reg("app/longshore.lock", "{}")), "longshore.lock:1:1: version is missing", fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := artifacts.ReadArchive(tt.data)
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadArchive = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
	_, err := artifacts.ReadArchive(tarball(t, reg("app/docker-compose.yml", "")))
	if got := fault.Hint(err); got != "rename docker-compose.yml to compose.yaml" {
		t.Errorf("Hint = %q", got)
	}
}

func project() fstest.MapFS {
	return fstest.MapFS{
		"compose.yaml":     {Data: []byte("services: {web: {image: caddy:2.10}}\n"), Mode: 0o600, ModTime: time.Unix(1e9, 0)},
		"config/Caddyfile": {Data: []byte(":80\n"), Mode: 0o644},
		"config/hook.sh":   {Data: []byte("#!/bin/sh\n"), Mode: 0o4755},
		".git/HEAD":        {Data: []byte("x")},
		"config/.DS_Store": {Data: []byte("x")},
		"a/very/" + strings.Repeat("long", 30) + "/name-ä": {Data: []byte("x")},
	}
}

func TestPackComponent(t *testing.T) {
	o := artifacts.ComponentOptions{Name: "line-monitor", Version: "1.4.0_b1", Lock: lock(), Created: time.Unix(1700000000, 0)}
	a, err := artifacts.PackComponent(project(), o)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "component", show(t, a))
	touched := project()
	for _, f := range touched {
		f.ModTime, f.Sys = time.Unix(2e9, 0), 7
	}
	if again, err := artifacts.PackComponent(touched, o); err != nil || again.Descriptor.Digest != a.Descriptor.Digest {
		t.Errorf("times change the digest: %v", err)
	}
	x, err := artifacts.OpenComponent(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if x.Version != "1.4.0_b1" || x.Archive.MediaType != artifacts.TypeComposeArchive {
		t.Errorf("OpenComponent = %+v", x)
	}
	data, err := from(a, nil)(x.Archive)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := artifacts.ReadArchive(data)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = fs.WalkDir(archive.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			i, err := d.Info()
			if err != nil {
				return err
			}
			names = append(names, fmt.Sprintf("%v %s", i.Mode(), name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"-rw-r--r-- a/very/" + strings.Repeat("long", 30) + "/name-ä", "-rw-r--r-- compose.yaml", "-rw-r--r-- config/Caddyfile", "-rwxr-xr-x config/hook.sh", "-rw-r--r-- longshore.lock"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	if archive.Root != "line-monitor" || archive.Lock == nil || len(archive.Lock.Images) != 2 {
		t.Errorf("archive = %+v", archive)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil || z.Name != "" || !z.ModTime.IsZero() {
		t.Errorf("gzip header = %+v, %v, want no name and no time", z.Header, err)
	}
	r := tar.NewReader(z)
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.Mode&0o7000 != 0 {
			t.Errorf("header %+v has a time, an owner or a special bit", h)
		}
	}
}

func TestPackComponentRefuses(t *testing.T) {
	big := project()
	big["big"] = &fstest.MapFile{Data: make([]byte, artifacts.MaxUnpacked)}
	for name, tt := range map[string]struct {
		fsys          fs.FS
		name, version string
		want          string
		is            error
	}{
		"name":            {project(), "Line Monitor", "1.0.0", "is not a component name", fault.ErrInvalid},
		"no name":         {project(), "", "1.0.0", "is not a component name", fault.ErrInvalid},
		"version":         {project(), "a", "v1.0.0", "is not a version", fault.ErrInvalid},
		"version plus":    {project(), "a", "1.0.0+b", "is not a version", fault.ErrInvalid},
		"no compose.yaml": {fstest.MapFS{"a": {}}, "a", "1.0.0", "there is no compose.yaml", fault.ErrInvalid},
		"empty":           {fstest.MapFS{}, "a", "1.0.0", "there is no compose.yaml", fault.ErrInvalid},
		"missing":         {os.DirFS("testdata/nothing"), "a", "1.0.0", "no such file", fault.ErrNotFound},
		"too large":       {big, "a", "1.0.0", "bytes of files", fault.ErrTooLarge},
		"socket":          {fstest.MapFS{"compose.yaml": {}, "s": {Mode: fs.ModeSocket}}, "a", "1.0.0", "s is neither file", fault.ErrInvalid},
		"own lock":        {fstest.MapFS{"compose.yaml": {}, "longshore.lock": {}}, "a", "1.0.0", "longshore.lock: is empty", fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := artifacts.PackComponent(tt.fsys, artifacts.ComponentOptions{Name: tt.name, Version: tt.version})
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("PackComponent = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
}

func TestPackLinks(t *testing.T) {
	d := t.TempDir()
	for _, err := range []error{
		os.WriteFile(d+"/compose.yaml", []byte("services: {}\n"), 0o644), os.Symlink("compose.yaml", d+"/copy.yaml"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := artifacts.PackComponent(os.DirFS(d), artifacts.ComponentOptions{Name: "a", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := artifacts.ReadArchive(a.Blobs[1].Data)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := fs.ReadFile(archive.FS, "copy.yaml"); err != nil || string(b) != "services: {}\n" {
		t.Errorf("copy.yaml = %q, %v", b, err)
	}
	if err := os.Symlink("/etc/hostname", d+"/leak"); err != nil {
		t.Fatal(err)
	}
	if _, err := artifacts.PackComponent(os.DirFS(d), artifacts.ComponentOptions{Name: "a", Version: "1.0.0"}); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "an absolute path") {
		t.Errorf("PackComponent with a link out = %v", err)
	}
}

func TestOpenComponentRefuses(t *testing.T) {
	a, err := artifacts.PackComponent(project(), artifacts.ComponentOptions{Name: "a", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	m := string(a.Manifest)
	for name, tt := range map[string]struct {
		old, new, want string
		is             error
	}{
		"artifact type":     {`"artifactType":"` + artifacts.TypeComponent, `"artifactType":"x`, "artifact type", fault.ErrUnsupported},
		"layer type":        {artifacts.TypeComposeArchive, "application/x", "must have exactly one layer", fault.ErrUnsupported},
		"two layers":        {`"layers":[`, `"layers":[` + m[strings.Index(m, `"layers":[`)+10:strings.Index(m, `],"annotations":{"org.margo`)] + `,`, "must have exactly one layer", fault.ErrUnsupported},
		"component type":    {`"org.margo.component.type":"compose"`, `"org.margo.component.type":"helm"`, "on the layer", fault.ErrInvalid},
		"versions differ":   {`"org.margo.component.version":"1.0.0"`, `"org.margo.component.version":"1.0.1"`, "is \"1.0.1\" on the layer", fault.ErrInvalid},
		"archive too large": {fmt.Sprintf(`"size":%d`, a.Blobs[1].Descriptor.Size), `"size":16777217`, "more than 16777216", fault.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := artifacts.OpenComponent([]byte(strings.Replace(m, tt.old, tt.new, 1))); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("OpenComponent = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
	helm := strings.ReplaceAll(m, `"org.margo.component.type":"compose"`, `"org.margo.component.type":"helm"`)
	if _, err := artifacts.OpenComponent([]byte(helm)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("OpenComponent of type helm = %v, want fault.ErrUnsupported", err)
	}
	bare := strings.ReplaceAll(m, `"org.margo.component.version":"1.0.0",`, "")
	bare = strings.Replace(bare, `"artifactType":"`+artifacts.TypeComponent+`",`, "", 1)
	bare = strings.Replace(bare, "application/vnd.oci.empty.v1+json", artifacts.TypeComponent, 1)
	if x, err := artifacts.OpenComponent([]byte(bare)); err != nil || x.Version != "" {
		t.Errorf("OpenComponent of an older tool's manifest = %+v, %v", x, err)
	}
}

func FuzzReadArchive(f *testing.F) {
	f.Add(tarball(f, dir("app"), reg("app/compose.yaml", "services: {}\n"), symlink("app/a", "compose.yaml"), hardlink("app/b", "app/a")))
	f.Add(tarball(f, reg("../x", ""), reg("app/compose.yaml", "")))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := artifacts.ReadArchive(data)
		if err != nil {
			return
		}
		err = fs.WalkDir(a.FS, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || !fs.ValidPath(name) {
				return fmt.Errorf("%q: %w", name, err)
			}
			return nil
		})
		if err != nil || len(a.Root) == 0 {
			t.Fatal(err)
		}
	})
}

// FuzzTar is FuzzReadArchive behind the gzip, where the fuzzer finds more.
func FuzzTar(f *testing.F) {
	z, err := gzip.NewReader(bytes.NewReader(tarball(f, dir("app"), reg("app/compose.yaml", "services: {}\n"), symlink("app/a", "compose.yaml"), hardlink("app/b", "app/a"))))
	if err != nil {
		f.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		_, _ = artifacts.ReadArchive(b.Bytes())
		_, _ = artifacts.ReadBundle(b.Bytes())
	})
}
