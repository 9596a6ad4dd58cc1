package main

import (
	"fmt"
	"os"

	"github.com/longshore-dev/longshore/agent/firstprocess"
)

// inContainer runs what the container driver starts this program for: as a container's first process, or beside a
// container with a terminal. It comes before everything else, for it must be small and quick, and its names are fixed:
// containers that run were made with them. done is false for every other command.
func inContainer(args []string) (code int, done bool) {
	switch {
	case len(args) >= 3 && args[1] == "init-process" && args[2] == "--":
		code, err := firstprocess.Init(args[3:], os.Environ())
		if err != nil {
			fmt.Fprintln(os.Stderr, "init:", err)
		}
		return code, true
	case len(args) == 3 && args[1] == "terminal-output":
		if err := firstprocess.Copy(args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "longshore-agent:", err)
			return 1, true
		}
		return 0, true
	}
	return 0, false
}
