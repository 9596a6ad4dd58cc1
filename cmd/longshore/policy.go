package main

import (
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

func (p *program) policyTestCommand() *cli.Command {
	return p.command("policy", command{
		name: "test", args: "FILE HOST/PATH[:TAG|@DIGEST]", min: 2, max: 2,
		usage: "show what a device with a trust policy would decide, and why",
		about: "Checks the artifact of the reference, and everything below it, against the trust.yaml in FILE, like a device that has " +
			"not accepted anything before: which rule decides, which signers count, which do not, and why. --at decides for " +
			"another time. A device stops at the first failed check; this command shows all of them. The order of generations is " +
			"checked only on the device.",
		examples: []string{
			"trust.yaml harbor.acme.example/plant/state:press-07",
			"--at 2027-06-01T00:00:00Z -o json trust.yaml harbor.acme.example/plant/state:press-07",
			"--kind image trust.yaml docker.io/library/caddy:2.10",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "at", Usage: "`TIME` to decide at, like 2027-06-01T00:00:00Z; default: now"},
		}, auditFlags(), registryFlags()),
		run: p.policyTest,
	})
}

func (p *program) policySchemaCommand() *cli.Command {
	return p.command("policy", command{
		name: "schema", usage: "print the JSON schema of trust.yaml, for editors",
		about: "With the schema an editor completes keys and marks mistakes. longshore check also reads the keys and finds " +
			"contradictions.",
		examples: []string{"", "> trust.schema.json"},
		run: func(*cli.Context, []string) error {
			_, err := p.stdout.Write(trust.Schema())
			return err
		},
	})
}

// policyResult is what a device would decide.
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
	for _, warning := range r.Warnings {
		row(w, "warning", "%s", warning)
	}
	says := "a device would take it"
	switch {
	case !r.Allowed:
		says = "a device would refuse it"
	case r.Insecure:
		says += ", and every status would say that it is not secure"
	}
	row(w, "decision", "%s (%s, %s)", says, r.Policy, r.At)
}

func (p *program) policyTest(c *cli.Context, args []string) error {
	now := p.now()
	if s := c.String("at"); s != "" {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return misused(c, "--at %q is no time like 2027-06-01T00:00:00Z", s)
		}
		now = t
	}
	data, err := p.readDocument(args[0])
	if err != nil {
		return err
	}
	policy, err := readPolicy(args[0], data)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := p.audit(c, client, args[1], audit.Policy{Policy: policy, Now: now})
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
	if err := p.show(c, r); err != nil {
		return err
	}
	return failed
}
