package main

import "path/filepath"

// beside is a path as a file at name means it: relative to its folder.
func beside(name, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(name), path)
}

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
