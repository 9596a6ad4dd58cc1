package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/longshore/git"
)

// dirtySuffix is appended to the revision of uncommitted files.
const dirtySuffix = "-dirty"

var dirtyFlag = cmdline.Flag{Name: "allow-dirty", Value: false, Usage: "publish uncommitted files, as revision COMMIT" + dirtySuffix}

// sources are files of one directory that an artifact is made of.
type sources struct {
	dir   string   // as the command line names it
	files []string // the used ones, with slashes
	alone bool     // ignore all other files in the directory
}

// origin adds the address and the commit of the Git checkout with the sources to an artifact's annotations. Uncommitted files
// are rejected without --allow-dirty. Sources outside a checkout, or in several, have no origin. If the annotations contain a
// revision, Git is not run. With look, for a command that does not publish, it prints notes instead of errors.
func (c *call) origin(look bool, all ...sources) (map[string]string, error) {
	given, allowed := c.annotations, look || c.Bool("allow-dirty")
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
				hintOr(err, "")+"name the commit with --annotation "+ocispec.AnnotationRevision+"=COMMIT, or publish without one with --allow-dirty"), outcome.Refused)
		case err != nil:
			c.note(look, "%s is in a Git checkout whose commit is unknown: %v", m.dir, err)
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
		c.note(look, "%v: publishing it needs --allow-dirty", dirty)
	}
	first := found[0]
	if slices.ContainsFunc(found, func(o *git.Checkout) bool { return o.Revision != first.Revision || o.Source != first.Source }) {
		return given, nil
	}
	return c.annotated(first.Source, first.Revision, dirty != nil), nil
}

// annotated adds source and revision to the annotations, if they are known and not given.
func (c *call) annotated(source, revision string, dirty bool) map[string]string {
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
	maps.Copy(out, c.annotations)
	return out
}

func hintOr(err error, otherwise string) string {
	if hint := fault.Hint(err); hint != "" {
		return hint + "; or "
	}
	return otherwise
}

// note prints a note on stderr.
func (c *call) note(wanted bool, format string, args ...any) {
	if wanted && !c.Bool("quiet") {
		fmt.Fprintf(c.stderr, "note: "+format+"\n", args...)
	}
}

// parts are the file names of an artifact's layers.
func parts(a *artifacts.Artifact) []string {
	var out []string
	for _, b := range a.Blobs {
		if name := b.Descriptor.Annotations[ocispec.AnnotationTitle]; name != "" {
			out = append(out, name)
		}
	}
	return out
}

// documentsOf are the sources of files that a command line names; nil if one of them is stdin.
func documentsOf(files []string) []sources {
	var out []sources
	for _, f := range files {
		if f == "-" {
			return nil
		}
		out = append(out, sources{filepath.Dir(f), []string{filepath.Base(f)}, true})
	}
	return out
}
