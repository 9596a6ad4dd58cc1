package ipam

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxState bounds the saved state: some ten thousand containers.
const MaxState = 8 << 20

// document is the saved form. Sum is the checksum of the state's bytes: it detects a flipped bit in an address
// that is still a valid address.
type document struct {
	Sum   string          `json:"sum"`
	State json.RawMessage `json:"state"`
}

// Encode is deterministic: equal states are equal bytes. A state above [MaxState] is fault.ErrTooLarge.
func Encode(s *State) ([]byte, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	sum := sha256.Sum256(raw)
	b, err := json.Marshal(document{hex.EncodeToString(sum[:]), raw})
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	if len(b) > MaxState {
		return nil, fmt.Errorf("save the state of the networks: more than %d bytes: %w", MaxState, fault.ErrTooLarge)
	}
	return b, nil
}

// Decode reads strictly. An error means damage, or another version of the program: the checksum vouches for the rest.
func Decode(data []byte) (*State, error) {
	var d document
	if len(data) > MaxState {
		return nil, fmt.Errorf("more than %d bytes: %w", MaxState, fault.ErrTooLarge)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if sum := sha256.Sum256(d.State); d.Sum != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("checksum does not match: %w", fault.ErrDigestMismatch)
	}
	s := &State{}
	strict := json.NewDecoder(bytes.NewReader(d.State))
	strict.DisallowUnknownFields()
	if err := strict.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	return s.Clone(), nil // without nil maps
}
