package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

// result is the result of a command. Its JSON form has stable keys; text is for people.
type result interface {
	text(w io.Writer)
	// quietText is what --quiet prints: mostly a digest.
	quietText() string
}

// show writes a result to stdout, in the format of -o or --quiet.
func (c *call) show(r result) error {
	format := c.String("output")
	switch {
	case format == "markdown":
		m, ok := r.(interface{ markdown(w io.Writer) })
		if !ok {
			return fmt.Errorf("no Markdown of %T", r) // a command that offers Markdown has it
		}
		m.markdown(c.stdout)
		return nil
	case format == "json", format == "yaml":
		return cmdline.Encode(c.stdout, format, r)
	case c.Bool("quiet"):
		if s := r.quietText(); s != "" {
			_, err := fmt.Fprintln(c.stdout, s)
			return err
		}
		return nil
	default:
		var b bytes.Buffer
		r.text(&b)
		_, err := c.stdout.Write(b.Bytes())
		return err
	}
}

// row writes one line of a result: two spaces, a label, and the text.
func row(w io.Writer, label, format string, args ...any) {
	fmt.Fprintf(w, "  %-9s %s\n", label, fmt.Sprintf(format, args...))
}
