package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/trust"
)

var trustShowCommand = command{
	name: "show", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
	usage: "show a trust policy in a registry",
	about: "Shows the newest published version, or that of a tag (v7, v8.proposal) or digest, and its changes. With --document it " +
		"prints only the policy, as a file for a device or for the next version. For the signers use longshore trust history.",
	examples: []string{"harbor.acme.example/plant/trust", "--document harbor.acme.example/plant/trust:v7"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "document", Value: false, Usage: "print only the policy, byte for byte if the output is not a terminal"},
	}, registryFlags),
	run: (*call).trustShow,
}

type trustInfo struct {
	Reference string `json:"reference"`
	digested
	Version    uint64        `json:"version"`
	Previous   digest.Digest `json:"previous,omitempty"`
	Expires    string        `json:"expires,omitempty"`
	Repository string        `json:"repository"` // of the next version
	Signers    []trustSigner `json:"signers"`    // of the next version
	Threshold  int           `json:"threshold"`
	Rules      []trustRule   `json:"rules"`
	Revoked    []string      `json:"revoked"`
	Document   string        `json:"document"`
	Changes    []string      `json:"changes,omitempty"` // compared with the previous version

	Generations *trust.Reset `json:"generations,omitempty"`
}

type trustSigner struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Who       string `json:"who"` // fingerprint, or subject and issuer
	NotBefore string `json:"notBefore,omitempty"`
	NotAfter  string `json:"notAfter,omitempty"`
}

type trustRule struct {
	Scope     string   `json:"scope"`
	Artifacts []string `json:"artifacts"`
	Says      string   `json:"says"`
}

func (r trustInfo) text(w io.Writer) {
	row(w, "policy", "%s", r.Reference)
	row(w, "version", "%d", r.Version)
	changeRows(w, r.Changes)
	some(w, "expires", r.Expires)
	for _, x := range r.Rules {
		row(w, "rule", "%s  %s  %s", x.Scope, strings.Join(x.Artifacts, ", "), x.Says)
	}
	rows(w, "revoked", r.Revoked)
	resetRow(w, r.Generations)
	row(w, "next", "from %s, with signatures by %d of", r.Repository, r.Threshold)
	for _, s := range r.Signers {
		until := ""
		if s.NotAfter != "" {
			until = "  until " + s.NotAfter
		}
		row(w, "", "%s  %s%s", s.Name, s.Who, until)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (c *call) trustShow(args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	x, err := trust.Look(c.Context, repo, ref.Target())
	if err != nil {
		return err
	}
	if c.Bool("document") {
		out := printable.Raw(c.stdout)
		if cmdline.Terminal(out) != nil {
			out = c.stdout // a terminal would execute escape sequences
		}
		_, err := out.Write(x.Document)
		return err
	}
	r := describePolicy(ref, x)
	if r.Changes, err = c.changesOf(repo, x); err != nil {
		return err
	}
	return c.show(r)
}

// changesOf lists what a version changes; nothing if the previous version is missing or invalid. If that one has no valid
// signatures, a line says so, because it may hide changes.
func (c *call) changesOf(repo *registry.Repository, x *trust.Published) ([]string, error) {
	former, err := x.Former(c.Context, repo)
	if release.Unfit(err) {
		return nil, nil
	}
	if err != nil || former == nil {
		return nil, err
	}
	changes := trust.Difference(former.Policy, x.Policy)
	err = former.Signed(c.Context, c.now(), repo)
	if fault.Retryable(err) {
		return nil, err
	}
	if err != nil {
		changes = append(changes, oneLine(fmt.Sprintf("these are the changes since version %d, which lacks valid signatures: compare with a policy that you trust: %v", former.Policy.Version, err)))
	}
	return changes, nil
}

func describePolicy(ref registry.Reference, x *trust.Published) trustInfo {
	r := trustInfo{
		Reference: ref.String(), digested: digested{x.Descriptor.Digest}, Version: x.Policy.Version, Previous: x.Index.Previous, Expires: stamp(x.Policy.Expires),
		Signers: []trustSigner{}, Rules: []trustRule{}, Revoked: []string{}, Document: string(x.Document),
		Generations: x.Policy.Generations,
	}
	if t := x.Policy.Trust; t != nil {
		r.Repository, r.Threshold = t.Repository, t.Need()
		for _, s := range t.Signers {
			r.Signers = append(r.Signers, trustSigner{s.Name, s.Kind, s.String(), stamp(s.NotBefore), stamp(s.NotAfter)})
		}
	}
	for _, rule := range x.Policy.Rules {
		r.Rules = append(r.Rules, trustRule{rule.Scope, rule.Kinds(), rule.Says()})
	}
	for _, v := range x.Policy.Revoked {
		what := "key " + v.Key.String()
		if v.Digest != "" {
			what = v.Digest.String()
		}
		r.Revoked = append(r.Revoked, what+" "+v.String())
	}
	return r
}

var trustHistoryCommand = command{
	name: "history", args: "HOST/PATH", min: 1, max: 1,
	usage: "list and verify the versions of the trust policy",
	about: "Lists every version in HOST/PATH with its changes, the revision of its source files, and its signers, as the previous " +
		"version and the version itself count them, when the last of them signed, and open proposals. It verifies versions as a " +
		"device does: if devices refuse one, the reason is shown and the exit code is 5. The first version in the repository is " +
		"trusted, or the file of --policy, which devices have.",
	examples: []string{"harbor.acme.example/plant/trust", "--policy /etc/longshore/trust.yaml -o json harbor.acme.example/plant/trust"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "policy", Usage: "trust.yaml `FILE` that was installed on devices by hand"},
	}, registryFlags),
	run: (*call).trustHistory,
}

type trustHistory struct {
	Repository string       `json:"repository"`
	Versions   []trustEntry `json:"versions"`
}

type trustEntry struct {
	Version  uint64        `json:"version"`
	Tag      string        `json:"tag"`
	Digest   digest.Digest `json:"digest"`
	State    string        `json:"state"`              // published, proposed or refused
	Signed   string        `json:"signed,omitempty"`   // time of the newest valid signature
	Created  string        `json:"created,omitempty"`  // as the version claims
	Revision string        `json:"revision,omitempty"` // of its source files, as the version claims
	Changes  []string      `json:"changes"`            // compared with the previous version
	Before   *quorumInfo   `json:"before"`             // by the previous version; null: there is none
	After    *quorumInfo   `json:"after"`              // by the version itself
	Error    string        `json:"error,omitempty"`
}

func (r trustHistory) quietText() string {
	for i := len(r.Versions) - 1; i >= 0; i-- {
		if r.Versions[i].State == "published" {
			return r.Versions[i].Digest.String()
		}
	}
	return ""
}

func (r trustHistory) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  VERSION\tSTATE\tDIGEST\tSIGNED AT\tSIGNERS BY PREVIOUS VERSION\tBY THIS VERSION")
	for _, v := range r.Versions {
		before, after := "–", "–"
		if v.Before != nil {
			before = v.Before.String()
		}
		if v.After != nil {
			after = v.After.String()
		}
		fmt.Fprintf(t, "  %d\t%s\t%s\t%s\t%s\t%s\n", v.Version, v.State, printable.Digest(v.Digest), cmp.Or(v.Signed, v.Created, "–"), before, after)
	}
	_ = t.Flush() // into memory
	for _, v := range r.Versions {
		for _, change := range v.Changes {
			row(w, fmt.Sprintf("version %d", v.Version), "%s", change)
		}
		if v.Revision != "" {
			row(w, fmt.Sprintf("version %d", v.Version), "revision %s", oneLine(v.Revision))
		}
		if v.Error != "" {
			row(w, fmt.Sprintf("version %d", v.Version), "! %s", v.Error)
		}
	}
}

func (c *call) trustHistory(args []string) error {
	ref, err := c.repositoryOnly(args[0])
	if err != nil {
		return err
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	past, err := trust.History(c.Context, c.now(), repo, c.policy)
	if err != nil {
		return err
	}
	if len(past) == 0 && c.policy == nil {
		return fmt.Errorf("%s: there is no trust policy: %w", ref.Place(), fault.ErrNotFound)
	}
	r := trustHistory{Repository: ref.Place(), Versions: []trustEntry{}}
	var refused error
	for _, x := range past {
		e := trustEntry{
			Version: x.Version, Tag: x.Tag, Digest: x.Digest, State: "published", Signed: stamp(x.Signed()), Created: stamp(x.Created),
			Revision: x.Revision, Changes: append([]string{}, x.Changes...), Before: quorum(x.Old), After: quorum(x.New),
		}
		if x.Proposal {
			e.State = "proposed"
		}
		if x.Err != nil {
			e.State, e.Error = "refused", fault.Summary(x.Err)
			refused = outcome.WithCode(fmt.Errorf("%s: devices refuse version %d", ref.Place(), x.Version), outcome.Verification)
		}
		r.Versions = append(r.Versions, e)
	}
	return cmp.Or(c.show(r), refused)
}
