package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/emit"
)

// result is what a command found or did. Its JSON form has stable keys; text is for people.
type result interface {
	text(w io.Writer)
	// essence is the one value that a script wants, for --quiet: a digest mostly.
	essence() string
}

// show writes a result to stdout as -o and --quiet ask.
func (p *program) show(c *cli.Context, r result) error {
	format := c.String("output")
	switch {
	case format == "markdown":
		m, ok := r.(interface{ markdown(w io.Writer) })
		if !ok {
			return fmt.Errorf("no Markdown of %T", r) // the command offers it and has it
		}
		m.markdown(p.stdout)
		return nil
	case format == "json":
		e := json.NewEncoder(p.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case format == "yaml":
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if data, err = emit.FromJSON(data); err != nil { // by way of JSON: the same keys in the same order
			return err
		}
		_, err = p.stdout.Write(data)
		return err
	case c.Bool("quiet"):
		if s := r.essence(); s != "" {
			_, err := fmt.Fprintln(p.stdout, s)
			return err
		}
		return nil
	default:
		var b bytes.Buffer
		r.text(&b)
		_, err := p.stdout.Write(b.Bytes())
		return err
	}
}

// row writes one line of a result: two spaces, a label, the text.
func row(w io.Writer, label, format string, args ...any) {
	fmt.Fprintf(w, "  %-9s %s\n", label, fmt.Sprintf(format, args...))
}

// short is a digest for people.
func short(d digest.Digest) string {
	algorithm, hex, ok := strings.Cut(d.String(), ":")
	if !ok || len(hex) <= 12 {
		return d.String()
	}
	return algorithm + ":" + hex[:12] + "…"
}

// size is a number of bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, i := float64(n)/unit, 0
	for value >= unit && i < 3 {
		value, i = value/unit, i+1
	}
	return fmt.Sprintf("%.1f %s", value, []string{"KiB", "MiB", "GiB", "TiB"}[i])
}
