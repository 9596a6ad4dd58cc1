package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/longshore/git"
)

// dirtySuffix is behind the revision of what is not committed.
const dirtySuffix = "-dirty"

func dirtyFlag() cli.Flag {
	return &cli.BoolFlag{Name: "allow-dirty", Usage: "publish uncommitted files, as revision COMMIT" + dirtySuffix}
}

// material is what goes into an artifact from one directory.
type material struct {
	dir   string   // as the command line names it
	files []string // that are used of it, with slashes
	alone bool     // nothing else in the directory counts
}

// origin adds to an artifact's annotations where its material comes from: address and commit of the Git checkout that holds
// it. What is not committed is refused, unless --allow-dirty. Material of no checkout, or of several, has no origin; a
// revision that is given already is believed, and Git is not asked.
func (p *program) origin(c *cli.Context, given map[string]string, all ...material) (map[string]string, error) {
	return p.findOrigin(c, given, c.Bool("allow-dirty"), false, all)
}

// lookAtOrigin is origin for a command that only looks: it notes what publishing would refuse.
func (p *program) lookAtOrigin(c *cli.Context, given map[string]string, all ...material) (map[string]string, error) {
	return p.findOrigin(c, given, true, true, all)
}

func (p *program) findOrigin(c *cli.Context, given map[string]string, allowed, note bool, all []material) (map[string]string, error) {
	if _, told := given[ocispec.AnnotationRevision]; told {
		return given, nil
	}
	program := git.Program{Environ: os.Environ()}
	var found []*git.Checkout
	var dirty error
	for _, m := range all {
		checkout, err := program.Checkout(c.Context, m.dir)
		switch {
		case c.Context.Err() != nil:
			return nil, c.Context.Err()
		case err != nil && !allowed:
			return nil, outcome.WithCode(fault.WithHint(fmt.Errorf("%s is in a Git checkout whose commit is unknown: %w", m.dir, err),
				hintOr(err, "")+"name the commit with --annotation "+ocispec.AnnotationRevision+"=COMMIT, or publish it without one with --allow-dirty"), outcome.Refused)
		case err != nil:
			p.note(c, note, "%s is in a Git checkout whose commit is unknown: %v", m.dir, err)
			return given, nil
		case checkout == nil:
			return given, nil
		}
		files := checkout.Uncommitted(m.files)
		if m.alone {
			files = checkout.UncommittedOf(m.files)
		}
		if len(files) > 0 {
			dirty = errors.Join(dirty, outcome.WithCode(git.Dirty(m.dir, files), outcome.Refused))
		}
		found = append(found, checkout)
	}
	switch {
	case len(found) == 0:
		return given, nil
	case dirty != nil && !allowed:
		return nil, dirty
	case dirty != nil:
		p.note(c, note, "%v: publishing it needs --allow-dirty", dirty)
	}
	first := found[0]
	if slices.ContainsFunc(found, func(o *git.Checkout) bool { return o.Revision != first.Revision || o.Source != first.Source }) {
		return given, nil
	}
	return annotated(given, first.Source, first.Revision, dirty != nil), nil
}

// annotated adds source and revision to annotations, where they are known and not given.
func annotated(given map[string]string, source, revision string, dirty bool) map[string]string {
	out := map[string]string{}
	if source != "" {
		out[ocispec.AnnotationSource] = source
	}
	if revision != "" {
		out[ocispec.AnnotationRevision] = revision
		if dirty {
			out[ocispec.AnnotationRevision] += dirtySuffix
		}
	}
	maps.Copy(out, given)
	return out
}

func hintOr(err error, otherwise string) string {
	if hint := fault.Hint(err); hint != "" {
		return hint + "; or "
	}
	return otherwise
}

// note tells something that is no error and no result.
func (p *program) note(c *cli.Context, wanted bool, format string, args ...any) {
	if wanted && !c.Bool("quiet") {
		fmt.Fprintf(p.stderr, "note: "+format+"\n", args...)
	}
}

// parts are the files of an artifact whose layers have their names.
func parts(a *artifacts.Artifact) []string {
	var out []string
	for _, b := range a.Blobs {
		if name := b.Descriptor.Annotations[ocispec.AnnotationTitle]; name != "" {
			out = append(out, name)
		}
	}
	return out
}

// documentsOf are files that a command line names; nil when one of them is no file.
func documentsOf(files []string) []material {
	var out []material
	for _, f := range files {
		if f == "-" {
			return nil
		}
		out = append(out, material{filepath.Dir(f), []string{filepath.Base(f)}, true})
	}
	return out
}
