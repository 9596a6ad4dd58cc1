package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

const trustChangeText = " The command reads the newest version in HOST/PATH, verifies its signatures, makes the next version, and shows what changes " +
	"for signers and devices. Then it continues like longshore trust push: it signs with each --key and proposes the version, or " +
	"publishes it if enough signers have signed. With --file it changes a file instead. On a terminal it asks for confirmation."

// whereFlags choose the signers to change.
var whereFlags = []cmdline.Flag{
	{Name: "scope", Usage: "`SCOPE` of the rule to change, as written in the policy; default: the only rule with signers"},
	{Name: "artifact", Usage: "`KIND` of the rule, if several rules have this scope: state, component, image, bundle or trust"},
	{Name: "policy-signers", Value: false, Usage: "change the signers of the policy itself (trust.signers), not those of a rule"},
}

// changeFlags are the flags of all commands that make the next version.
var changeFlags = slices.Concat([]cmdline.Flag{
	{Name: "file", Alias: "f", Usage: "trust.yaml `FILE` to change, instead of HOST/PATH; nothing is signed"},
	{Name: "dry-run", Value: false, Usage: "show what would change, and change nothing"},
	{Name: "replace", Value: false, Usage: "replace an existing proposal; its signatures do not count for yours"},
	annotationFlag, yesFlag,
}, signersFlags, registryFlags)

var successorFlag = cmdline.Flag{Name: "successor", Usage: "public key `FILE` that replaces the removed key everywhere"}

var nameFlag = cmdline.Flag{Name: "name", Usage: "`NAME` of the new key in the policy; default: its file name without .pub"}

var trustAddCommand = command{
	name: "add", args: "KEY [HOST/PATH]", min: 1, max: 2,
	usage: "add a signer to the trust policy",
	about: "Adds a key to the signers of a rule, or, with --policy-signers, to those of the policy itself. KEY is a public key file, or " +
		"the name of a signer in the policy. The threshold stays." + trustChangeText,
	examples: []string{
		"--key root-1.key release-b.pub harbor.acme.example/plant/trust",
		"--policy-signers --dry-run root-4.pub harbor.acme.example/plant/trust",
	},
	flags: slices.Concat(whereFlags, []cmdline.Flag{nameFlag}, changeFlags),
	run: func(c *call, args []string) error {
		return c.changeTrust(args[1:], func(e *trust.Edit) error {
			k, err := c.keyOrName(args[0])
			if err != nil {
				return err
			}
			return e.Add(k, c.where())
		})
	},
}

var trustRemoveCommand = command{
	name: "remove", args: "NAME [HOST/PATH]", min: 1, max: 2,
	usage: "remove a signer from the trust policy",
	about: "Removes a signer from every rule and from the signers of the policy, or only from those of --scope or --policy-signers. If " +
		"fewer signers than the threshold would be left, the exit code is 6. Devices no longer accept new states with only this " +
		"signature; running containers continue. For a stolen key use longshore trust revoke." + trustChangeText,
	examples: []string{
		"--key root-1.key release harbor.acme.example/plant/trust",
		"--key root-1.key --successor root-4.pub root-3 harbor.acme.example/plant/trust",
	},
	flags: slices.Concat(whereFlags, []cmdline.Flag{successorFlag, nameFlag}, changeFlags),
	run: func(c *call, args []string) error {
		return c.changeTrust(args[1:], func(e *trust.Edit) error {
			successor, err := c.successor()
			if err != nil {
				return err
			}
			return e.Remove(args[0], c.where(), successor)
		})
	},
}

var trustRevokeCommand = command{
	name: "revoke", args: "KEY [HOST/PATH]", min: 1, max: 2,
	usage: "revoke a key in the trust policy",
	about: "For a stolen key: none of its signatures count any more, also earlier ones. KEY is a name in the policy, a public key file " +
		"or a fingerprint. The key is also removed from all signers. Running containers continue, and devices report them until " +
		"their state is published again with another key." + trustChangeText,
	examples: []string{
		"--key root-1.key --reason 'laptop stolen' release harbor.acme.example/plant/trust",
		"--key root-1.key --successor release-b.pub --reason 'laptop stolen' release harbor.acme.example/plant/trust",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "reason", Usage: "`TEXT` with the reason, for other people"},
		successorFlag, nameFlag,
	}, changeFlags),
	run: func(c *call, args []string) error {
		return c.changeTrust(args[1:], func(e *trust.Edit) error {
			who := args[0]
			if _, err := os.Stat(who); err == nil {
				keys, err := publicKeys([]string{who})
				if err != nil {
					return err
				}
				who = keys[0].Fingerprint.String()
			}
			successor, err := c.successor()
			if err != nil {
				return err
			}
			return e.Revoke(who, c.String("reason"), successor)
		})
	},
}

var trustThresholdCommand = command{
	name: "set-threshold", args: "NUMBER [HOST/PATH]", min: 1, max: 2,
	usage: "set how many signatures the trust policy requires",
	about: "Sets how many signers of a rule must sign, or, with --policy-signers, how many must sign the next version of the " +
		"policy. A number above the number of signers ends with exit code 6." + trustChangeText,
	examples: []string{
		"--key root-1.key 2 harbor.acme.example/plant/trust",
		"--key root-1.key --policy-signers 3 harbor.acme.example/plant/trust",
	},
	flags: slices.Concat(whereFlags, changeFlags),
	run: func(c *call, args []string) error {
		var n int
		if _, err := fmt.Sscanf(args[0], "%d", &n); err != nil || fmt.Sprint(n) != args[0] {
			return c.misused("%q is not a number of signatures", args[0])
		}
		return c.changeTrust(args[1:], func(e *trust.Edit) error { return e.SetThreshold(n, c.where()) })
	},
}

func (c *call) where() trust.Where {
	return trust.Where{Scope: c.String("scope"), Artifact: c.String("artifact"), Policy: c.Bool("policy-signers")}
}

// keyOrName is the key in a file, or, without such a file, the name of a signer in the policy.
func (c *call) keyOrName(s string) (trust.NamedPEM, error) {
	if _, err := os.Stat(s); err != nil && !strings.ContainsAny(s, `/\.`) {
		return trust.NamedPEM{Name: s}, nil
	}
	k := trust.NamedPEM{Name: cmp.Or(c.String("name"), keyName(s))}
	var err error
	k.PEM, err = bounded.File(os.Open, s, signing.MaxKeyBytes)
	return k, err
}

// successor reads --successor; nil without it.
func (c *call) successor() (*trust.NamedPEM, error) {
	file := c.String("successor")
	if file == "" {
		return nil, nil
	}
	k, err := c.keyOrName(file)
	return &k, err
}

// changeInfo is a change of a policy that is not pushed: of a file, or with --dry-run.
type changeInfo struct {
	File     string   `json:"file,omitempty"`
	Version  uint64   `json:"version"` // 0: the policy has no version
	Changes  []string `json:"changes"` // sentences
	Signers  string   `json:"signers"` // the required signers; "": devices get it by hand
	DryRun   bool     `json:"dryRun"`
	Document string   `json:"document"`
	Warnings []string `json:"warnings"`
}

func (r changeInfo) quietText() string { return strings.Join(r.Changes, "\n") }

func (r changeInfo) text(w io.Writer) {
	changeRows(w, r.Changes)
	some(w, "needs", r.Signers)
	rows(w, "warning", r.Warnings)
	version := ""
	if r.Version > 0 {
		version = fmt.Sprintf(": version %d", r.Version)
	}
	if r.DryRun {
		row(w, "would be", "changed%s (--dry-run: nothing was changed)", version)
	} else {
		row(w, "wrote", "%s%s", r.File, version)
	}
}

func changeRows(w io.Writer, changes []string) {
	label := "changes"
	for _, s := range changes {
		row(w, label, "%s", s)
		label = ""
	}
}

// changeTrust makes the next version of the policy in a repository, or in the file of --file.
func (c *call) changeTrust(at []string, do func(*trust.Edit) error) error {
	file := c.String("file")
	switch {
	case (file == "") == (len(at) == 0):
		return c.misused("give HOST/PATH, or --file")
	case file != "":
		return c.changeTrustFile(file, do)
	}
	ref, err := c.repositoryOnly(at[0])
	if err != nil {
		return err
	}
	repo, by, err := c.policySession(ref)
	if err != nil {
		return err
	}
	before, err := trust.Newest(c.Context, c.now(), repo)
	if err != nil {
		return err
	}
	e, err := before.Edit()
	if err == nil {
		err = do(e)
	}
	if err != nil {
		return err
	}
	r, document, err := describeChange(e)
	if err == nil {
		err = trust.Entitled(r.after, before, by)
	}
	if err != nil {
		return err
	}
	if r.DryRun = c.Bool("dry-run"); r.DryRun {
		return c.show(r.changeInfo)
	}
	var shown bytes.Buffer
	r.text(&shown)
	question, _, _ := strings.Cut(shown.String(), "  wrote")
	if err := c.confirm(fmt.Sprintf("%sPropose version %d?", question, r.Version)); err != nil {
		return err
	}
	d := trust.Draft{Document: document, Root: before.Root, Replace: c.Bool("replace"), Annotations: c.annotations}
	if d.Created, err = c.created(); err != nil {
		return err
	}
	x, err := trust.Propose(c.Context, c.now(), repo, moves{c.registry}, d, by...)
	if err != nil {
		return err
	}
	return c.showProposal(ref, by, x)
}

// changeTrustFile changes a file.
func (c *call) changeTrustFile(file string, do func(*trust.Edit) error) error {
	if len(c.StringSlice("key")) > 0 || c.Bool("keyless") {
		return c.misused("--file excludes --key and --keyless: sign with longshore trust push")
	}
	data, err := c.readDocument(file)
	if err != nil {
		return err
	}
	e, err := trust.Open(file, data, policyFile)
	if err == nil {
		err = do(e)
	}
	if err != nil {
		return err
	}
	r, document, err := describeChange(e)
	if err != nil {
		return err
	}
	r.File, r.DryRun = file, c.Bool("dry-run")
	if !r.DryRun {
		if file == "-" {
			return outcome.Usagef("", "--file -: stdin cannot be written; use --dry-run -o json")
		}
		if err := files.Write(file, document, 0o644); err != nil {
			return err
		}
	}
	return c.show(r.changeInfo)
}

type change struct {
	changeInfo
	after *trust.Policy
}

func describeChange(e *trust.Edit) (change, []byte, error) {
	document, after, err := e.Next()
	if err != nil {
		return change{}, nil, err
	}
	r := change{changeInfo{
		Version: after.Version, Changes: trust.Difference(e.Before, after), Document: string(document), Warnings: append([]string{}, after.Warnings...),
	}, after}
	if e.Before.Trust != nil && after.Trust != nil {
		r.Signers = "signatures by " + e.Before.Trust.Quorum.String()
		if now := after.Trust.Quorum.String(); now != e.Before.Trust.Quorum.String() {
			r.Signers += fmt.Sprintf(" (version %d), and by %s (version %d)", e.Before.Version, now, after.Version)
		}
	}
	return r, document, nil
}
