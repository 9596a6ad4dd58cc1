package margo

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ManagerPrefix begins the name of a manager where it stands beside repositories, as in a trust policy: "margo+https://host".
const ManagerPrefix = "margo+"

// IsManager reports whether a name is that of a manager and not of a repository.
func IsManager(name string) bool { return strings.HasPrefix(name, ManagerPrefix) }

// ManagerName is the name of the manager at a URL, in one form only: the host in small letters, no default port, no slash at the
// end.
func ManagerName(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fault.WithHint(fmt.Errorf("not the URL of a manager: %w", fault.ErrInvalid), "write it like https://fleet.example, with scheme, host, port and a path at most")
	}
	host := strings.ToLower(u.Host)
	host = strings.TrimSuffix(host, map[string]string{"https": ":443", "http": ":80"}[u.Scheme])
	return ManagerPrefix + u.Scheme + "://" + host + strings.TrimRight(u.EscapedPath(), "/"), nil
}
