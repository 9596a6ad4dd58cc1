package artifacts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxDeviceID is more than any name needs and keeps annotations short.
const maxDeviceID = 512

// DeviceID names a device: "press-07", or "gateway-1/press-07" behind a gateway.
type DeviceID string

// ParseDeviceID checks a device id: letters, digits and ". _ ~ -", parts joined by "/".
func ParseDeviceID(s string) (DeviceID, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("device id is empty: %w", fault.ErrInvalid)
	case len(s) > maxDeviceID:
		return "", fmt.Errorf("device id has %d characters, more than %d: %w", len(s), maxDeviceID, fault.ErrInvalid)
	case !margo.ValidDeviceID(s):
		return "", fault.WithHint(fmt.Errorf("%q is not a device id: %w", s, fault.ErrInvalid),
			`use letters, digits and ". _ ~ -", and "/" between a gateway and its devices`)
	}
	return DeviceID(s), nil
}

const (
	maxTagFromID = 96 // leaves room for ".v18446744073709551615.proposal" and ".current" in a tag's 128 characters
	hashedPrefix = "d-"
)

var (
	readableTag  = strict.Expression(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	reservedTag  = strict.Expression(`\.(v[0-9]+|current|sig|att|sbom|proposal)$|^sha[0-9]+-`) // ours, and those of signatures
	hashedTag    = strict.Expression(`^d-[0-9a-f]{32}$`)
	ambiguousIDs = strict.Expression(`__|_/|/_`) // "/" becomes "__", so these could meet another id's tag
)

// Tag is the tag of the device's state: the id where it can be read as a tag, with "__" for "/"; else "d-" and 32
// hexadecimal digits of its SHA-256. Two ids never share a tag. What binds a state to a device is in the signed bytes.
func (d DeviceID) Tag() string {
	tag := strings.ReplaceAll(string(d), "/", "__")
	if len(tag) > maxTagFromID || !readableTag.MatchString(tag) || reservedTag.MatchString(tag) || hashedTag.MatchString(tag) ||
		ambiguousIDs.MatchString(string(d)) {
		sum := sha256.Sum256([]byte(d))
		return hashedPrefix + hex.EncodeToString(sum[:16])
	}
	return tag
}

// Covers reports whether a deployment that is assigned to another id belongs into this device's state: to the device, to one
// behind it, or ("press-07/*") to any behind it. Documents of the 1.0.0 line name no device, and every device covers them.
func (d DeviceID) Covers(assigned string) bool {
	return assigned == "" || assigned == string(d) || strings.HasPrefix(assigned, string(d)+"/")
}

// MaxReportedGeneration is the highest generation that counts when a device reports it as accepted: a device's token
// lets its holder report any number, and a generation cannot be taken back.
const MaxReportedGeneration = 1 << 53

// DefaultNamespace is the namespace of deployments where the publisher names none.
const DefaultNamespace = "default"

// deploymentSpace is the name space of the ids that [DeploymentID] makes.
const deploymentSpace = "https://longshore.dev/deployment"

// DeploymentID is the id of a device's deployment of a name, whichever command publishes it: the same every time (UUID
// version 5, RFC 9562), so that another version or other parameters are a change of the deployment and not another one.
func DeploymentID(device DeviceID, name string) string {
	space := uuid.NewSHA1(uuid.NameSpaceURL, []byte(deploymentSpace))
	return uuid.NewSHA1(space, []byte(string(device)+"\n"+name)).String()
}

// HistoryTag is the tag that one generation keeps: "press-07.v42".
func HistoryTag(tag string, generation uint64) string {
	return tag + ".v" + strconv.FormatUint(generation, 10)
}

// proposed ends the tag of what waits for signatures.
const proposed = ".proposal"

// ProposalTag is the tag under which one generation waits for signatures: "press-07.v42.proposal".
func ProposalTag(tag string, generation uint64) string {
	return ProposalOf(HistoryTag(tag, generation))
}

// ProposalOf is the tag under which the generation of a history tag waits for signatures.
func ProposalOf(history string) string { return history + proposed }

// CutProposal returns the history tag that a proposal is for; false for tags that are not of a proposal.
func CutProposal(tag string) (history string, ok bool) { return strings.CutSuffix(tag, proposed) }
