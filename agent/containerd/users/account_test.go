package users

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// The ids are those that Docker takes, also where the files are links, which lead from the image's root.
func TestLookUp(t *testing.T) {
	files := map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\napp:x:1000:1001::/:/bin/sh\n",
		"group":  "root:x:0:\nwheel:x:10:root\napp:x:1001:\ndialout:x:20:app\naudio:x:29:\n",
	}
	plain, links, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{plain + "/etc", links + "/etc", links + "/nix/store/fake"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		for _, file := range []string{plain + "/etc/" + name, links + "/nix/store/fake/" + name} {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(
		os.Symlink("/nix/store/fake/passwd", links+"/etc/passwd"), os.Symlink("../../../nix/store/fake/group", links+"/etc/group"),
	); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		user   string
		groups []string
		want   []uint32 // the user, its group, and all groups, the first of which is that again; nil: rejected
	}{
		{"0", nil, []uint32{0, 0, 0, 10}},
		{"app", nil, []uint32{1000, 1001, 1001, 20}},
		{"1000", []string{"audio", "5"}, []uint32{1000, 1001, 1001, 5, 20, 29}},
		{"app:dialout", nil, []uint32{1000, 20, 20}},
		{"app:7", []string{"7", "20"}, []uint32{1000, 7, 7, 20}},
		{"4711", nil, []uint32{4711, 0, 0}},
		{"4711:20", nil, []uint32{4711, 20, 20}},
		{"nosuch", nil, nil},
		{"app:nosuch", nil, nil},
		{"app", []string{"nosuch"}, nil},
		{"4294967296", nil, nil},
	} {
		for _, root := range []string{plain, links} {
			u, err := LookUp(root, tc.user, tc.groups)
			got := slices.Concat([]uint32{u.UID, u.GID}, u.AdditionalGids)
			if len(got) > 3 {
				slices.Sort(got[3:])
			}
			if tc.want == nil && (!errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "") || tc.want != nil && !slices.Equal(got, tc.want) {
				t.Errorf("%s: user %s, groups %s: %v, %v, want %v", filepath.Base(root), tc.user, tc.groups, got, err, tc.want)
			}
		}
	}
	for user, ok := range map[string]bool{"0": true, "1000:20": true, "app": false} {
		if _, err := LookUp(empty, user, nil); (err == nil) != ok {
			t.Errorf("without files: user %s: %v", user, err)
		}
	}
	// What lies behind the limit may be groups of the user: they must not be lost without a word.
	if err := os.WriteFile(plain+"/etc/group", make([]byte, maxAccounts+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LookUp(plain, "0", nil); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("a group file over the limit: %v", err)
	}
}
