package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

// result is the result of a command. Its JSON form has stable keys; text is for people. What --quiet prints of it, mostly a digest,
// it has in quietText, if it has that.
type result interface{ text(w io.Writer) }

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
		if q, ok := r.(interface{ quietText() string }); ok && q.quietText() != "" {
			_, err := fmt.Fprintln(c.stdout, q.quietText())
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

// digested is a part of results whose main value is a digest.
type digested struct {
	Digest digest.Digest `json:"digest"`
}

func (d digested) quietText() string { return d.Digest.String() }

// row writes one line of a result: two spaces, a label, and the text.
func row(w io.Writer, label, format string, args ...any) {
	fmt.Fprintf(w, "  %-9s %s\n", label, fmt.Sprintf(format, args...))
}

// some writes a row if it has a text.
func some(w io.Writer, label, text string) {
	if text != "" {
		row(w, label, "%s", text)
	}
}

// firsts shows the first of many, and says how many there are more.
func firsts[T any](w io.Writer, all []T, show func(T)) {
	for _, one := range all[:min(len(all), maxListed)] {
		show(one)
	}
	if n := len(all) - maxListed; n > 0 {
		row(w, "", "and %d more", n)
	}
}

func rows[T any](w io.Writer, label string, texts []T) {
	for _, text := range texts {
		row(w, label, "%v", text)
	}
}
