package main

import (
	"debug/elf"
	"slices"
	"testing"
)

// TestDynamic compares with the program's headers. With the race detector the test's program is linked dynamically.
func TestDynamic(t *testing.T) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if got := dynamic(); got != want {
		t.Errorf("dynamic = %v, but its headers say %v", got, want)
	}
}
