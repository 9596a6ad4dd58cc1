package artifacts_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func lock() *artifacts.Lock {
	return &artifacts.Lock{Images: []artifacts.LockedImage{
		{Reference: "nats:2.12", Digest: digest.FromString("nats"), Platforms: []artifacts.LockedPlatform{
			{Platform: "linux/arm64", Digest: digest.FromString("nats/arm64"), Size: 6_000_000}, {Platform: "linux/amd64", Digest: digest.FromString("nats/amd64"), Size: 7_000_000},
		}},
		{Reference: "caddy:2.10", Digest: digest.FromString("caddy")},
	}}
}

func TestLock(t *testing.T) {
	data, err := lock().Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "lock", data)
	got, err := artifacts.ParseLock("f", data)
	if err != nil {
		t.Fatal(err)
	}
	want := lock()
	want.Images[0], want.Images[1] = want.Images[1], want.Images[0]
	want.Images[1].Platforms[0], want.Images[1].Platforms[1] = want.Images[1].Platforms[1], want.Images[1].Platforms[0]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseLock (-want +got):\n%s", diff)
	}
	if data, err := (&artifacts.Lock{}).Encode(); err != nil || !strings.Contains(string(data), `"images": []`) {
		t.Errorf("Encode of nothing = %s, %v", data, err)
	}
	twice := lock()
	twice.Images = append(twice.Images, twice.Images[0])
	if _, err := twice.Encode(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Encode of a reference twice = %v, want fault.ErrInvalid", err)
	}
}

func TestLockFaults(t *testing.T) {
	data, err := lock().Encode()
	if err != nil {
		t.Fatal(err)
	}
	in := string(data)
	for name, tt := range map[string]struct{ old, new, want string }{
		"missing":       {in, "", "f: is empty"},
		"wrong type":    {in, "[]", "f:1:1: must be an object, is a list"},
		"unknown":       {`"version"`, `"x": 1, "version"`, "f:2:3: x: unknown key"},
		"unknown image": {`"reference"`, `"refrence"`, `images[0].refrence: unknown key, did you mean "reference"?`},
		"version":       {`"version": 1`, `"version": 2`, "version: version 2 is not known here"},
		"truncated":     {in[len(in)/2:], "", "f:"},
		"not UTF-8":     {"nats", "\xff", "is not UTF-8 text"},
		"too large":     {in, strings.Repeat(" ", 5<<20), "more than the 4194304"},
		"duplicate key": {`"version": 1`, `"version": 1, "version": 1`, "version: duplicate key"},
		"same image":    {"nats:2.12", "caddy:2.10", `the reference "caddy:2.10" is there already`},
		"same platform": {"linux/amd64", "linux/arm64", `the platform "linux/arm64" is there already`},
		"reference":     {"nats:2.12", "nats 2.12", `"nats 2.12" is not an image reference`},
		"platform":      {"linux/amd64", "linux", `"linux" is not a platform`},
		"digest":        {"sha256:", "sha512:", "is not a digest"},
		"size":          {"7000000", "-7", "must not be negative"},
		"size fraction": {"7000000", "7.5", "is no whole number"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := artifacts.ParseLock("f", []byte(strings.Replace(in, tt.old, tt.new, 1))); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParseLock = %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzParseLock(f *testing.F) {
	data, err := lock().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := artifacts.ParseLock("f", data)
		if err != nil {
			return
		}
		b, err := l.Encode()
		if err != nil {
			t.Fatalf("encode what was parsed: %v", err)
		}
		again, err := artifacts.ParseLock("f", b)
		if err != nil || len(again.Images) != len(l.Images) {
			t.Fatalf("parse what was encoded: %v", err)
		}
	})
}
