package ipam

const (
	maxName     = 253 // characters of a DNS name; also more than a container id or a project has
	maxHostname = 64  // limit of the kernel
)

// ValidName reports whether s is valid in a hosts file and as a file name: letters, digits, dots, dashes, underscores, not
// beginning with a dot or a dash.
func ValidName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
		default:
			return false
		}
	}
	return true
}
