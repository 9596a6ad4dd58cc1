package cmdline

import (
	"encoding/json"
	"io"

	"github.com/longshore-dev/longshore/artifacts/emit"
)

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
