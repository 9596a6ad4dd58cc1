package compose_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// mounting is a project that mounts what is beside its file, in each way.
func mounting() fstest.MapFS {
	fsys := project(map[string]string{
		"compose.yaml": `
include: [db/compose.yaml]
services:
  web:
    image: caddy:2
    volumes:
      - ./site.conf:/etc/site.conf:ro
      - ./scripts/start.sh:/start.sh:ro,z
      - {type: bind, source: conf, target: /etc/app/, read_only: true}
      - /var/lib/line:/data
    configs: [{source: one, target: /one}]
    pre_start: [{command: [check], volumes: ["./site.conf:/in:ro"]}]
  side:
    image: caddy:2
    volumes: ["./conf:/own:ro"]
    volumes_from: [web]
configs: {one: {file: ./site.conf}}
`,
		"db/compose.yaml": "services: {db: {image: postgres, volumes: [\"./init:/init:ro\"]}}\n",
		"site.conf":       "listen 80\n", "scripts/start.sh": "#!/bin/sh\n", "conf/a.conf": "a\n", "conf/d/b.conf": "b\n", "conf/d.conf": "d\n",
		"db/init/1.sql": "select 1;\n", "db/init/.hidden": "", "README.md": "nobody names it\n", "conf2/c": "nor this\n",
	})
	fsys["scripts/start.sh"].Mode = 0o755
	return fsys
}

func TestMountsOfTheArchive(t *testing.T) {
	p, err := compose.Pack(t.Context(), "line", mounting())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"compose.yaml", "conf/a.conf", "conf/d.conf", "conf/d/b.conf", "db/init/.hidden", "db/init/1.sql", "scripts/start.sh", "site.conf"}
	if got := slices.Sorted(slices.Values(names(t, p.Files))); !cmp.Equal(got, want) {
		t.Errorf("packed %q, want %q", got, want)
	}
	for name, mode := range map[string]fs.FileMode{"scripts/start.sh": 0o755, "site.conf": 0o644} {
		if info, err := fs.Stat(p.Files, name); err != nil || info.Mode() != mode {
			t.Errorf("%s is packed as %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
	project, err := compose.Load(t.Context(), &artifacts.Archive{Root: "line", FS: p.Files, Compose: p.Compose}, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, target, content string, change ...func(*workload.File)) workload.File {
		f := workload.File{Name: name, Target: target, Content: []byte(content), Digest: digest.FromString(content)}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	at := func(path string) func(*workload.File) { return func(f *workload.File) { f.Path = path } }
	run := func(f *workload.File) { f.Mode = 0o555 }
	conf := func(target string) []workload.File {
		return []workload.File{
			file("./conf/a.conf", target, "a\n", at("a.conf")), file("./conf/d.conf", target, "d\n", at("d.conf")), file("./conf/d/b.conf", target, "b\n", at("d/b.conf")),
		}
	}
	own := slices.Concat([]workload.File{file("./site.conf", "/etc/site.conf", "listen 80\n"), file("./scripts/start.sh", "/start.sh", "#!/bin/sh\n", run)}, conf("/etc/app"))
	files := map[string][]workload.File{
		"web":  append([]workload.File{file("one", "/one", "listen 80\n")}, own...),
		"side": append(conf("/own"), own...),
		"db":   {file("./db/init/.hidden", "/init", "", at(".hidden")), file("./db/init/1.sql", "/init", "select 1;\n", at("1.sql"))},
	}
	got := map[string][]workload.File{}
	for _, s := range project.Services {
		got[s.Name] = s.Files
		for _, b := range s.PreStart {
			want := slices.Concat(files["web"], []workload.File{file("./site.conf", "/in", "listen 80\n")})
			if diff := cmp.Diff(want, b.Service.Files); diff != "" {
				t.Errorf("files before %s (-want +got):\n%s", s.Name, diff)
			}
		}
		if want := map[string]int{"web": 1, "side": 1}[s.Name]; len(s.Mounts) != want {
			t.Errorf("%s has mounts %+v", s.Name, s.Mounts)
		}
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestMountsOfTheArchiveRefused(t *testing.T) {
	many := map[string]string{}
	for n := range 300 {
		many[fmt.Sprintf("many/%d", n)] = ""
	}
	for name, c := range map[string]struct {
		volume string
		files  map[string]string
		want   string
	}{
		"written":                  {`"./data:/data"`, nil, `"./data" is no absolute path on the device (files beside compose.yaml are packed`},
		"written, long":            {`{type: bind, source: ./data, target: /data}`, nil, `"./data" is no absolute path on the device`},
		"not there":                {`"./no.conf:/x:ro"`, nil, `"./no.conf" is not in the archive (files are read from the archive`},
		"outside":                  {`"../a:/x:ro"`, nil, "../a is outside the directory"},
		"outside in between":       {`"./a/../../b:/x:ro"`, nil, "./a/../../b is outside the directory"},
		"home":                     {`"~/a:/x:ro"`, nil, `"~/a" is no absolute path`},
		"everything":               {`".:/x:ro"`, nil, "the whole directory is mounted (mount a file"},
		"everything, otherwise":    {`"./a/..:/x:ro"`, nil, "the whole directory is mounted"},
		"a variable":               {`"./${A:-a}:/x:ro"`, map[string]string{"a": ""}, "./${A:-a} holds a variable (write the path out"},
		"all of it a variable":     {`"${A:-./a}:/x:ro"`, map[string]string{"a": ""}, `"./a" is not in the archive`},
		"a variable, long":         {`{type: bind, source: "${A:-./a}", target: /x, read_only: true}`, map[string]string{"a": ""}, `"./a" is not in the archive`},
		"empty":                    {`"./a:/x:ro"`, map[string]string{"a/": ""}, "a holds no file"},
		"many":                     {`"./many:/x:ro"`, many, "many holds more than 256 files"},
		"large":                    {`"./a:/x:ro"`, map[string]string{"a": strings.Repeat("a", 1<<20+1)}, "a is larger than 1048576 bytes"},
		"large together":           {`"./a:/x:ro"`, large(9), "larger than 8388608 bytes (put large files into an image, or mount a directory of the device by its absolute path)"},
		"propagation":              {`"./a:/x:ro,rshared"`, map[string]string{"a": ""}, "rshared is for directories of the device"},
		"twice on one place":       {`"./a:/x:ro", "./b:/x:ro"`, map[string]string{"a/1": "", "b/2": ""}, `two files or mounts on "/x"`},
		"the same twice":           {`"./a:/x:ro", "./a:/x:ro"`, map[string]string{"a/1": ""}, `two files or mounts on "/x"`},
		"in place of a volume":     {`"./a:/x:ro", "/b:/x"`, map[string]string{"a/1": ""}, `two files or mounts on "/x"`},
		"neither file nor what is": {`"./a:/x:ro"`, map[string]string{"a|": ""}, "a is neither a file nor a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := project(c.files)
			for name, f := range fsys {
				if dir, ok := strings.CutSuffix(name, "/"); ok {
					delete(fsys, name)
					fsys[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
				} else if fifo, ok := strings.CutSuffix(name, "|"); ok {
					delete(fsys, name)
					fsys[fifo] = &fstest.MapFile{Mode: fs.ModeNamedPipe, Data: f.Data}
				}
			}
			fsys["compose.yaml"] = &fstest.MapFile{Data: []byte("services:\n  web:\n    image: x\n    volumes: [" + c.volume + "]\n")}
			_, err := compose.Pack(t.Context(), "d", fsys)
			if err == nil || !strings.Contains(fmt.Sprintf("%v", err), strings.SplitN(c.want, " (", 2)[0]) {
				t.Fatalf("Pack = %v, want %s", err, c.want)
			}
			if _, hint, ok := strings.Cut(c.want, " ("); ok && !strings.Contains(hints(err), strings.TrimSuffix(hint, ")")) {
				t.Errorf("hints %q, want %q", hints(err), hint)
			}
		})
	}
}

// hints are those of all faults.
func hints(err error) string {
	var out []string
	if e := (*strict.Error)(nil); errors.As(err, &e) {
		for _, f := range e.Faults {
			out = append(out, f.Hint)
		}
	}
	return strings.Join(out, "\n")
}

func large(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("a/%d", i)] = strings.Repeat("a", 1<<20)
	}
	return out
}
