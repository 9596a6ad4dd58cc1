package main

import "path/filepath"

// absolute is what a path of the command line means, so that it means the same in a file.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
