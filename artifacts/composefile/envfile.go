package composefile

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
)

// MaxEnvFile bounds one env file, in bytes.
const MaxEnvFile = 256 << 10

// ParseEnv reads an env file with compose-go. The library's errors contain the text around the fault, and these files have passwords:
// its own errors only name the file.
func ParseEnv(name string, data []byte, vars map[string]string, lookup func(string) (string, bool), format string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: compose-go: %v", name, r)
		}
	}()
	for i, line := range strings.Split(string(data), "\n") {
		if strings.Count(line, "${") > maxReferences || nesting(line) > maxReferenceIn || strings.Contains(line, "$") && len(line) > maxTemplate {
			return fmt.Errorf("%s: line %d: too long or too deep to replace variables in it", name, i+1)
		}
	}
	switch format {
	case "raw":
		return rawEnv(name, data, vars)
	case "":
	default:
		return fmt.Errorf("%q is no format of env files: raw is", Clip(format))
	}
	if err := dotenv.ParseWithFormat(bytes.NewReader(data), name, vars, lookup, ""); err != nil {
		return fmt.Errorf("%s is no env file: write KEY=value, one a line", name)
	}
	return nil
}

// rawEnv takes the text after the first "=" literally: no quotes, no variables. A name without "=" keeps the value that it has.
func rawEnv(name string, data []byte, vars map[string]string) error {
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimLeft(line, " \t"), "=")
		if key == "" || strings.ContainsAny(key, " \t") {
			return fmt.Errorf("%s is no env file: line %d: write KEY=value", name, i+1)
		}
		if ok {
			vars[key] = value
		}
	}
	return nil
}
