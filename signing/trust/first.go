package trust

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// NamedPEM is a public key as a file, under a name.
type NamedPEM struct {
	Name string
	PEM  []byte
}

// First is a policy that is made of keys: the one that a chain begins with.
type First struct {
	Repository string     // where the next version comes from
	Signers    []NamedPEM // who may sign it
	Threshold  int        // how many of them must; 0: more than half
	Scope      string     // what Keys speak for
	Keys       []NamedPEM // who must sign a state there, any one of them
}

// Document writes the policy, version 1, with its keys inside, for people to go on with.
func (f First) Document() ([]byte, error) {
	f.Threshold = cmp.Or(f.Threshold, len(f.Signers)/2+1)
	if f.Threshold < 1 || f.Threshold > len(f.Signers) {
		return nil, fmt.Errorf("a threshold of %d of %d signers: %w", f.Threshold, len(f.Signers), fault.ErrInvalid)
	}
	var b strings.Builder
	b.WriteString("# Who must have signed what runs on devices, and who may change that.\nversion: 1   # one more with each change\n\nkeys:\n")
	known := map[string]string{}
	for _, k := range slices.Concat(f.Signers, f.Keys) {
		text := strings.TrimSpace(strings.ReplaceAll(string(k.PEM), "\r\n", "\n"))
		if before, there := known[k.Name]; there {
			if before != text {
				return nil, fmt.Errorf("two keys are called %s: %w", k.Name, fault.ErrInvalid)
			}
			continue
		}
		if _, err := signing.ParsePublicKey(k.Name, k.PEM); err != nil {
			return nil, err
		}
		known[k.Name] = text
		fmt.Fprintf(&b, "  - name: %s\n    pem: |\n      %s\n", emit.Word(k.Name), strings.ReplaceAll(text, "\n", "\n      "))
	}
	fmt.Fprintf(&b, "\nrules:\n  - scope: %s\n    signers: %s\n", emit.Word(f.Scope), flow(f.Keys))
	fmt.Fprintf(&b, "\n# The next version comes from here, signed by as many of these as of those that it names itself.\n")
	fmt.Fprintf(&b, "trust:\n  repository: %s\n  signers: %s\n  threshold: %d\n", emit.Word(f.Repository), flow(f.Signers), f.Threshold)
	out := []byte(b.String())
	_, err := ParseTravelling(out, nil) // what is written must be readable
	return out, err
}

func flow(all []NamedPEM) string {
	names := make([]string, len(all))
	for i, k := range all {
		names[i] = emit.Word(k.Name)
	}
	return "[" + strings.Join(names, ", ") + "]"
}
