// Package paths joins names that come from others to directories of the agent.
package paths

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Join joins names below dir; each name must be one plain path element.
func Join(dir string, names ...string) (string, error) {
	for _, n := range names {
		if n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
			return "", fmt.Errorf("%q cannot name a file: %w", n, fault.ErrInvalid)
		}
		dir = filepath.Join(dir, n)
	}
	return dir, nil
}
