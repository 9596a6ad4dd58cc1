package registry_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseReference(t *testing.T) {
	oci := func(host, repository, tag string, d digest.Digest) registry.Reference {
		return registry.Reference{Scheme: registry.SchemeOCI, Registry: host, Repository: repository, Tag: tag, Digest: d}
	}
	layout := func(path, tag string, d digest.Digest) registry.Reference {
		return registry.Reference{Scheme: registry.SchemeLayout, Repository: path, Tag: tag, Digest: d}
	}
	tests := map[string]struct {
		in     string
		want   registry.Reference
		name   string
		target string
	}{
		"scheme":            {"oci://r.test/line/state:press-07", oci("r.test", "line/state", "press-07", ""), "r.test/line/state", "press-07"},
		"bare":              {"r.test/line/state:press-07", oci("r.test", "line/state", "press-07", ""), "r.test/line/state", "press-07"},
		"port":              {"r.test:5000/state", oci("r.test:5000", "state", "", ""), "r.test:5000/state", ""},
		"localhost":         {"localhost/state:x", oci("localhost", "state", "x", ""), "localhost/state", "x"},
		"short host":        {"registry/state:x", oci("registry", "state", "x", ""), "registry/state", "x"},
		"IPv6":              {"[::1]:5000/state:x", oci("[::1]:5000", "state", "x", ""), "[::1]:5000/state", "x"},
		"digest":            {"r.test/state@" + someDigest, oci("r.test", "state", "", someDigest), "r.test/state", someDigest},
		"tag and digest":    {"r.test/state:x@" + someDigest, oci("r.test", "state", "x", someDigest), "r.test/state", someDigest},
		"generation":        {"r.test/state:press-07.v42", oci("r.test", "state", "press-07.v42", ""), "r.test/state", "press-07.v42"},
		"layout":            {"oci-layout:./usb", layout("./usb", "", ""), "./usb", ""},
		"layout and tag":    {"oci-layout:/mnt/usb:press-07", layout("/mnt/usb", "press-07", ""), "/mnt/usb", "press-07"},
		"layout and digest": {"oci-layout:/mnt/usb@" + someDigest, layout("/mnt/usb", "", someDigest), "/mnt/usb", someDigest},
		"layout, all":       {"oci-layout:/mnt/usb:x@" + someDigest, layout("/mnt/usb", "x", someDigest), "/mnt/usb", someDigest},
		"layout as URL":     {"oci-layout:///mnt/usb:x", layout("/mnt/usb", "x", ""), "/mnt/usb", "x"},
		"layout in C:D/":    {"oci-layout:a:b/c", layout("a:b/c", "", ""), "a:b/c", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := registry.ParseReference(tt.in)
			if err != nil {
				t.Fatalf("ParseReference(%q) = %v", tt.in, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ParseReference(%q) (-want +got):\n%s", tt.in, diff)
			}
			if got.Name() != tt.name || got.Target() != tt.target {
				t.Errorf("Name, Target = %q, %q, want %q, %q", got.Name(), got.Target(), tt.name, tt.target)
			}
			if again, err := registry.ParseReference(got.String()); err != nil || again != got {
				t.Errorf("ParseReference(%q) = %+v, %v, want the same again", got.String(), again, err)
			}
		})
	}
}

func TestParseReferenceRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":            "",
		"only a name":      "state",
		"no repository":    "r.test/",
		"no host":          "/state",
		"other scheme":     "https://r.test/state",
		"docker scheme":    "docker://r.test/state",
		"upper case":       "r.test/State",
		"empty tag":        "r.test/state:",
		"tag too long":     "r.test/state:" + strings.Repeat("x", 129),
		"tag with slash":   "r.test/state:a/b",
		"tag with dot":     "r.test/state:.x",
		"empty digest":     "r.test/state@",
		"short digest":     "r.test/state@sha256:abc",
		"upper digest":     "r.test/state@" + strings.ToUpper(someDigest),
		"md5":              "r.test/state@md5:d41d8cd98f00b204e9800998ecf8427e",
		"two digests":      "r.test/state@" + someDigest + "@" + someDigest,
		"user and pass":    "u:p@r.test/state",
		"query":            "r.test?x/state",
		"space":            "r.test/sta te",
		"newline":          "r.test/state\n",
		"not UTF-8":        "r.test/st\xffte",
		"port of words":    "r.test:http/state",
		"empty port":       "r.test:/state",
		"dots":             "r.test/../state",
		"double slash":     "r.test//state",
		"percent":          "r.test%2f/state",
		"too long":         "r.test/" + strings.Repeat("a", 5000),
		"path too long":    "r.test/" + strings.Repeat("a", 300),
		"layout, no path":  "oci-layout:",
		"layout, only tag": "oci-layout::x",
		"layout, bad tag":  "oci-layout:usb:",
		"layout, NUL":      "oci-layout:a\x00b",
		"layout, digest":   "oci-layout:usb@sha256:abc",
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := registry.ParseReference(in); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("ParseReference(%q) = %+v, %v, want fault.ErrInvalid", in, r, err)
			}
		})
	}
}

func TestParseImage(t *testing.T) {
	for in, want := range map[string]string{
		"redis":                       "docker.io/library/redis:latest",
		"redis:7":                     "docker.io/library/redis:7",
		"redis@" + someDigest:         "docker.io/library/redis@" + someDigest,
		"grafana/grafana:12":          "docker.io/grafana/grafana:12",
		"docker.io/redis":             "docker.io/library/redis:latest",
		"docker.io/library/redis:7":   "docker.io/library/redis:7",
		"index.docker.io/library/x":   "docker.io/library/x:latest",
		"registry-1.docker.io/a/b:1":  "docker.io/a/b:1",
		"localhost/x:1":               "localhost/x:1",
		"localhost:5000/x":            "localhost:5000/x:latest",
		"r.test/line/web:2":           "r.test/line/web:2",
		"oci://r.test/line/web:2":     "r.test/line/web:2",
		"r.test/web:2@" + someDigest:  "r.test/web:2@" + someDigest,
		"127.0.0.1:5000/line/web:1.0": "127.0.0.1:5000/line/web:1.0",
		"oci-layout:usb:web":          "oci-layout:usb:web",
	} {
		r, err := registry.ParseImage(in)
		if err != nil || r.String() != want {
			t.Errorf("ParseImage(%q) = %q, %v, want %q", in, r.String(), err, want)
		}
	}
	for _, in := range []string{"", "Redis", "redis:", "/redis", "a b", "docker.io/", "https://r.test/x", strings.Repeat("a", 5000)} {
		if r, err := registry.ParseImage(in); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseImage(%.40q) = %+v, %v, want fault.ErrInvalid", in, r, err)
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{
		"oci://r.test/a/b:t@" + someDigest, "oci-layout:a:b/c:d", "[::1]:5/x", "redis", "r.test:5000/a", "oci-layout://x@sha256:a", "@:@",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, parse := range map[string]func(string) (registry.Reference, error){
			"ParseReference": registry.ParseReference, "ParseImage": registry.ParseImage,
		} {
			r, err := parse(s)
			if err != nil {
				if !errors.Is(err, fault.ErrInvalid) {
					t.Errorf("%s(%q) = %v, want fault.ErrInvalid", name, s, err)
				}
				continue
			}
			if again, err := registry.ParseReference(r.String()); err != nil || again != r {
				t.Errorf("%s(%q) writes %q, which reads as %+v, %v", name, s, r.String(), again, err)
			}
		}
	})
}
