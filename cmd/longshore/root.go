package main

import (
	"cmp"
	"fmt"
	"io"
	"time"
)

var trustedRootShowCommand = command{
	name: "show", args: "FILE", min: 1, max: 1,
	usage: "show what a trusted_root.json trusts, and its date",
	about: "Shows the certificate authorities, logs and timestamp authorities that are trusted for keyless signatures, and since " +
		"when. The newest of them is the date of the trusted root: a device refuses signatures that need newer ones. Use the " +
		"file of cosign trusted-root create, or the one that a sigstore instance publishes, unchanged. In trust.yaml, name it as " +
		"trustedRoot: {file: trusted_root.json}.",
	examples: []string{"trusted_root.json", "-o json trusted_root.json"},
	run:      (*call).trustedRootShow,
}

// rootResult shows a trusted root.
type rootResult struct {
	digested
	Dated   string       `json:"dated,omitempty"`
	Members []rootMember `json:"members"`
}

type rootMember struct {
	Kind  string `json:"kind"`
	URI   string `json:"uri,omitempty"`
	Name  string `json:"name"`
	From  string `json:"from,omitempty"`
	Until string `json:"until,omitempty"`
}

func (r rootResult) text(w io.Writer) {
	for _, m := range r.Members {
		row(w, m.Kind, "%s %s, from %s%s", m.URI, m.Name, cmp.Or(m.From, "unknown"), until(m.Until))
	}
	row(w, "dated", "%s", cmp.Or(r.Dated, "unknown"))
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func until(s string) string {
	if s == "" {
		return ""
	}
	return " until " + s
}

func day(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.DateOnly)
}

func (c *call) trustedRootShow(args []string) error {
	root, err := readRoot(args[0])
	if err != nil {
		return err
	}
	r := rootResult{digested: digested{root.Digest()}, Dated: day(root.Dated()), Members: []rootMember{}}
	for _, m := range root.Members() {
		r.Members = append(r.Members, rootMember{Kind: m.Kind, URI: m.URI, Name: m.Name, From: day(m.From), Until: day(m.Until)})
	}
	return c.show(r)
}
