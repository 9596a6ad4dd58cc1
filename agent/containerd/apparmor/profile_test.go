package apparmor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/google/go-cmp/cmp"
)

// The profile has the rules of containerd's.
func TestRulesAreContainerds(t *testing.T) {
	theirs, err := apparmor.DumpDefaultProfile("longshore")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(statements(theirs), statements(profile("longshore"))); diff != "" {
		t.Errorf("containerd's -, ours +\n%s", diff)
	}
}

// statements are the lines of a profile without comments, sorted: their order has no meaning.
func statements(profile string) (out []string) {
	for line := range strings.Lines(profile) {
		if !strings.HasPrefix(line, "#include") && !strings.HasPrefix(strings.TrimSpace(line), "#include") {
			line, _, _ = strings.Cut(line, "#")
		}
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "rootlesskit") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// The program reads the profile, its words are told, and it ends with its context.
func TestParser(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, tt := range []struct {
		name, script string
		limit        time.Duration
		want         string // "": no error
		is           error
	}{
		{"loads", `[ "$1" = -Kr ] && [ "$(cat)" = "profile x {}" ]`, time.Minute, "", nil},
		{"tells", "echo no space >&2; exit 1", time.Minute, "no space", nil},
		{"hangs", "exec sleep 600", 100 * time.Millisecond, "deadline", context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "apparmor_parser"), []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			err := parse(ctx, "profile x {}")
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("parse = %v, want %q", err, tt.want)
			}
		})
	}
}
