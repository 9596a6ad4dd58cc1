package cmdline

import (
	"encoding/json"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// OutputFlag is the flag -o of a command that prints its result with [Context.Show].
func OutputFlag(variable string) Flag {
	return Flag{Name: "output", Alias: "o", Usage: "`FORMAT` of the output: text, json or yaml", Value: "text", Env: variable, OneOf: []string{"text", "json", "yaml"}}
}

// Show writes v in the format of -o; text writes it for people.
func (c *Context) Show(v any, text func(io.Writer)) error {
	if format := c.String("output"); format != "text" {
		return Encode(c.Out, format, v)
	}
	text(c.Out)
	return nil // the writer's own errors show when it is flushed
}

// EncodeNext writes one of the values of a stream: as a line of JSON, or as the next element of a list in YAML.
func EncodeNext(w io.Writer, format string, v any) error {
	if format == "yaml" {
		return Encode(w, format, []any{v})
	}
	return json.NewEncoder(w).Encode(v)
}

// Encode writes v as json or yaml.
func Encode(w io.Writer, format string, v any) error {
	if format == "yaml" {
		data, err := json.Marshal(v)
		if err == nil {
			data, err = emit.FromJSON(data) // via JSON, for the same keys in the same order
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Terminal is the terminal that a standard stream is, also one behind a [printable.Writer]; nil: it is none.
func Terminal(stream any) *os.File {
	if w, ok := stream.(*printable.Writer); ok {
		stream = printable.Raw(w)
	}
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}
