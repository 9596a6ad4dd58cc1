package main

import (
	"testing"

	"github.com/longshore-dev/longshore/testenv"
)

func TestUnmapProgram(t *testing.T) {
	mapped := func() float64 {
		fields, err := testenv.Account("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		return fields["RssFile"] + fields["RssShmem"] // the test's program may be in a tmpfs
	}
	before := mapped()
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(); after > before*3/4 {
		t.Errorf("%.0f KiB of files are mapped, %.0f KiB before", after, before)
	}
}
