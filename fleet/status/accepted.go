package status

import (
	"path"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Accepted is the accepted-client policy of mutual TLS: which clients of this manager are accepted, and for which devices each may report.
type Accepted struct {
	clients  map[string][]string // devices of a client that is named
	patterns []string
	denied   map[string]bool
}

// maxClient is the length of a client's id, which is part of a SPIFFE id.
const maxClient = 255

// ParseAccepted reads a policy: YAML with the list accept, of client ids, patterns with "*", or mappings of client and devices; and
// the list deny of client ids, which counts more.
func ParseAccepted(file string, data []byte) (*Accepted, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	a := &Accepted{clients: map[string][]string{}, denied: map[string]bool{}}
	for _, n := range root.Need("accept").Items() {
		if n.Kind() == strict.String && strings.ContainsAny(n.Text(), "*") {
			a.patterns = append(a.patterns, clientID(n, strings.ReplaceAll(n.Text(), "*", "x"), n.Text()))
			continue
		}
		a.accept(n)
	}
	for _, n := range root.Get("deny").Items() {
		a.denied[clientID(n, n.Text(), n.Text())] = true
	}
	root.Close()
	return strict.Result(root, a)
}

// accept takes a client by its id, or with its devices.
func (a *Accepted) accept(n *strict.Node) {
	at, devices := n, []string(nil)
	if n.Kind() == strict.Object {
		at = n.Need("client")
		for _, d := range n.Need("devices").Items() {
			id, err := artifacts.ParseDeviceID(d.Text())
			if err != nil {
				d.Faultf("%v", err)
			}
			devices = append(devices, string(id))
		}
		if len(devices) == 0 {
			n.Faultf("devices: at least one is needed")
		}
		n.Close()
	}
	id := clientID(at, at.Text(), at.Text())
	if _, twice := a.clients[id]; twice && id != "" {
		at.Faultf("client %q is there twice", id)
	}
	if devices == nil {
		devices = []string{id}
	}
	a.clients[id] = devices
}

// clientID checks how an id, or a pattern's example, is written.
func clientID(n *strict.Node, example, text string) string {
	bad := func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_", r)
	}
	if n != nil && (example == "" || len(example) > maxClient || example == "." || example == ".." || strings.ContainsFunc(example, bad)) {
		n.HintFaultf("write the part of its SPIFFE id behind /client/: letters, digits, dots, dashes, underscores", "%q is no client id", text)
	}
	return text
}

// Client returns the client with the devices that it may report for; false: it is not accepted. The id is the last part of its SPIFFE id.
func (a *Accepted) Client(id string) (Client, bool) {
	if a == nil || a.denied[id] {
		return Client{}, false
	}
	devices, ok := a.clients[id]
	for _, p := range a.patterns {
		if ok {
			break
		}
		if ok, _ = path.Match(p, id); ok {
			devices = []string{id}
		}
	}
	switch {
	case !ok:
		return Client{}, false
	case len(devices) == 1:
		return DeviceClient(devices[0]), true
	}
	return Client{ID: "client:" + id, Devices: devices}, true
}

// Denies reports whether the policy names a client as denied. A nil policy denies no client and accepts none.
func (a *Accepted) Denies(id string) bool { return a != nil && a.denied[id] }
