package status

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
)

// TrustPolicyName stands for a deployment's name and id in the change of the trust policy.
const TrustPolicyName = "trust-policy"

// Change is what the newest state changes of one deployment, on a device that holds changes back, or a version of the trust policy that
// waits.
type Change struct {
	ID           digest.Digest     `json:"id"` // names all that the change brings; a decision is about it
	Deployment   string            `json:"deployment"`
	DeploymentID string            `json:"deploymentId"`
	Generation   uint64            `json:"generation"`
	Kinds        []plan.Kind       `json:"kinds"`
	Components   []ComponentChange `json:"components"` // that get another revision
	Images       []ImageChange     `json:"images"`
	Restarts     int               `json:"restarts"`   // containers that are replaced or removed
	Containers   int               `json:"containers"` // that run of it now
	Bytes        int64             `json:"bytes"`      // of images that are still to be loaded, as far as it is known
	Since        time.Time         `json:"since"`
	Waiting      *Waiting          `json:"waiting"` // null: nothing holds it back
	Begun        time.Time         `json:"begun,omitzero"`
	Decision     *store.Decision   `json:"decision"` // null: none

	Trust *store.TrustChange `json:"trust,omitempty"` // null: the change is of a deployment
}

// What the plan and the store have is shown as it is.
type (
	ComponentChange = plan.ComponentChange
	Waiting         = plan.Wait
	SecurityEvent   = store.Security
)

// ImageChange is a service that gets another image.
type ImageChange struct {
	Component string `json:"component"`
	Service   string `json:"service"`
	From      string `json:"from,omitempty"` // by digest; "": the service is new
	FromTag   string `json:"fromTag,omitempty"`
	To        string `json:"to"`
	ToTag     string `json:"toTag,omitempty"`
	Bytes     int64  `json:"bytes"` // still to be loaded; 0: none, or not known
}
