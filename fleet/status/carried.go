package status

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// PathCarried is where reports that devices have signed are handed in by others.
const PathCarried = "/fleet/v1/reports"

// Carried is the answer to a report that was handed in.
type Carried struct {
	Device  artifacts.DeviceID `json:"device"`
	Counter uint64             `json:"counter"`
	Stored  bool               `json:"stored"`         // false: the device has reported the same, or something newer, before
	Note    string             `json:"note,omitempty"` // that transitions of status are missing, or why it is not stored although it is of another database
}

// CarriedReports handles POST [PathCarried]: the body is a current state that its device has signed, as a Sigstore bundle. verify returns
// what a device's own key has signed; its errors wrap fault.ErrNotFound (there is no key of the device), fault.ErrBadSignature or
// fault.ErrInvalid. The handler does not authenticate who hands the report in: that is done before it.
func CarriedReports(o Options, verify func(ctx context.Context, bundle []byte) (*artifacts.CurrentState, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CallTimeout)
		defer cancel()
		out, p := carried(ctx, o, http.MaxBytesReader(w, r.Body, artifacts.MaxCurrentState), verify)
		if p != nil {
			p.answer(w, r, o.Logger)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // a client that is gone needs no answer
	})
}

func carried(ctx context.Context, o Options, body io.Reader, verify func(context.Context, []byte) (*artifacts.CurrentState, error)) (*Carried, *problem) {
	bundle, err := bounded.Read(body, artifacts.MaxCurrentState)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large), errors.Is(err, fault.ErrTooLarge):
		return nil, blank(http.StatusRequestEntityTooLarge, "the report is too large")
	case err != nil:
		return nil, invalid("the report cannot be read")
	}
	c, err := verify(ctx, bundle)
	switch {
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrBadSignature):
		return nil, notAuthorized(err.Error())
	case errors.Is(err, fault.ErrInvalid), errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrTooLarge):
		return nil, invalid(err.Error())
	case err != nil:
		return nil, broke(err)
	}
	stored, note, err := Collect(ctx, o.Store, c, o.Now())
	if note != "" {
		o.Logger.Warn("report", "device", c.Device, "note", note)
	}
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return nil, gatewayNotFound("the gateway of " + string(c.Device) + " has not reported its own capabilities yet")
	case err != nil:
		p := broke(err)
		if note != "" { // the same report has no note when it is handed in again
			p.Detail = strings.TrimPrefix(p.Detail+"; "+note, "; ")
		}
		return nil, p
	}
	if stored && o.Changed != nil {
		o.Changed()
	}
	return &Carried{Device: c.Device, Counter: c.Counter, Stored: stored, Note: note}, nil
}
