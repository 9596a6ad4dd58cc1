//go:build !linux

package store

import (
	"errors"
	"os"
)

// allocate is not needed: devices run Linux, other systems only read what the agent reports.
func allocate(*os.File, int64) error { return errors.ErrUnsupported }
