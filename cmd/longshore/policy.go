package main

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

var policyTestCommand = command{
	name: "test", args: "FILE HOST/PATH[:TAG|@DIGEST]", min: 2, max: 2,
	usage: "show what a device with this trust policy would decide, and why",
	about: "Checks the artifact of the reference, and everything below it, against the trust policy in FILE, like a new device. It " +
		"shows which rule decides, which signers count, which do not, and why. --at decides for another time. A device stops at " +
		"the first failed check; this command shows all of them. Only a device itself can check the order of generations.",
	examples: []string{
		"trust.yaml harbor.acme.example/plant/state:press-07",
		"--at 2027-06-01T00:00:00Z -o json trust.yaml harbor.acme.example/plant/state:press-07",
		"--kind image trust.yaml docker.io/library/caddy:2.10",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "at", Usage: "`TIME` to decide at, like 2027-06-01T00:00:00Z; default: now"},
	}, auditFlags, registryFlags),
	run: (*call).policyTest,
}

var policySchemaCommand = command{
	name: "schema", usage: "print the JSON schema of trust.yaml, for editors",
	about: "With the schema, an editor completes keys and marks errors. longshore check also reads the key files and finds " +
		"contradictions.",
	examples: []string{"", "> trust.schema.json"},
	run: func(c *call, _ []string) error {
		_, err := c.stdout.Write(trust.Schema())
		return err
	},
}

// policyResult is the decision of a device.
type policyResult struct {
	Policy   string   `json:"policy"` // the file
	Version  uint64   `json:"version,omitempty"`
	Expires  string   `json:"expires,omitempty"`
	At       string   `json:"at"`
	Allowed  bool     `json:"allowed"`
	Warnings []string `json:"warnings,omitempty"`
	verifyResult
}

func (r policyResult) text(w io.Writer) {
	r.verifyResult.text(w)
	rows(w, "warning", r.Warnings)
	says := "a device would accept it"
	switch {
	case !r.Allowed:
		says = "a device would refuse it"
	case r.Insecure:
		says += ", and show it as insecure in every status"
	}
	row(w, "decision", "%s (%s, %s)", says, r.Policy, r.At)
}

func (c *call) policyTest(args []string) error {
	now := c.now()
	if s := c.String("at"); s != "" {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return c.misused("--at %q is not a time such as 2027-06-01T00:00:00Z", s)
		}
		now = t
	}
	data, err := c.readDocument(args[0])
	if err != nil {
		return err
	}
	policy, err := readPolicy(args[0], data)
	if err != nil {
		return err
	}
	found, err := c.audit(args[1], audit.Policy{Policy: policy, Now: now})
	if err != nil {
		return err
	}
	found.explain = true
	r := policyResult{
		Policy: args[0], Version: policy.Version, Expires: stamp(policy.Expires), At: stamp(now), Allowed: found.Verified, Warnings: policy.Warnings,
		verifyResult: found,
	}
	failed := verdict(found.Err())
	if failed != nil && c.Bool("quiet") {
		return failed
	}
	return cmp.Or(c.show(r), failed)
}
