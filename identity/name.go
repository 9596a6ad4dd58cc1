package identity

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxName is the length of a SPIFFE id in bytes, by SPIFFE-ID section 2.3.
const maxName = 2048

// Name is the SPIFFE id of a workload fleet manager or of one of its clients. All comparisons are exact.
type Name struct {
	TrustDomain string
	Manager     string // wfm-id
	Client      string // wfm-client-id; "": the manager itself
}

// ParseName reads "spiffe://TRUST-DOMAIN/margo/wfm/MANAGER", with "/client/CLIENT" for a client.
func ParseName(text string) (Name, error) {
	if len(text) > maxName {
		return Name{}, fmt.Errorf("a SPIFFE id of %d bytes: %w", len(text), fault.ErrTooLarge)
	}
	id, err := spiffeid.FromString(text)
	if err != nil {
		return Name{}, fmt.Errorf("%q is no SPIFFE id: %w: %w", text, fault.ErrInvalid, err)
	}
	return nameOf(id)
}

func nameOf(id spiffeid.ID) (Name, error) {
	n := Name{TrustDomain: id.TrustDomain().Name()}
	part := strings.Split(id.Path(), "/") // the first is empty; the library rejects empty, "." and ".." ones
	isManager := len(part) >= 4 && part[1] == "margo" && part[2] == "wfm"
	switch {
	case isManager && len(part) == 4:
		n.Manager = part[3]
	case isManager && len(part) == 6 && part[4] == "client":
		n.Manager, n.Client = part[3], part[5]
	default:
		return Name{}, fmt.Errorf("%s is the id of no manager and no client: %w", id,
			fault.WithHint(fault.ErrInvalid, "a manager is spiffe://TRUST-DOMAIN/margo/wfm/MANAGER, a client of it has /client/CLIENT behind that"))
	}
	return n, nil
}

func (n Name) String() string {
	text := "spiffe://" + n.TrustDomain + "/margo/wfm/" + n.Manager
	if n.Client != "" {
		text += "/client/" + n.Client
	}
	return text
}

// ManagerName is the manager that a client belongs to; of a manager it is the manager itself.
func (n Name) ManagerName() Name {
	n.Client = ""
	return n
}
