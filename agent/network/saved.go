package network

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxState bounds the saved state: some ten thousand containers.
const maxState = 8 << 20

// copyFile is a copy of the saved state in the run directory, which lives as long as the containers do. By it they keep their
// networks when agent.db is lost.
const copyFile = "networks.json"

// Store keeps the state of the networks. It is implemented by the agent's store.
type Store interface {
	// Networks returns what was saved last; nil: nothing was.
	Networks() ([]byte, error)
	// SaveNetworks returns when the state is on the disk, whole; after an error the one before is saved.
	SaveNetworks(state []byte) error
}

// document is what is saved. Sum is over the state's bytes as they stand, so that a flipped bit in an address is
// found although it still reads as an address.
type document struct {
	Sum   string          `json:"sum"`
	State json.RawMessage `json:"state"`
}

// encodeState is deterministic: equal states are equal bytes. A state that decodeState would not read is fault.ErrTooLarge.
func encodeState(s *state) ([]byte, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	sum := sha256.Sum256(raw)
	b, err := json.Marshal(document{hex.EncodeToString(sum[:]), raw})
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	if len(b) > maxState {
		return nil, fmt.Errorf("save the state of the networks: more than %d bytes: %w", maxState, fault.ErrTooLarge)
	}
	return b, nil
}

// decodeState reads strictly: what it returns passed [state.check]. An error is one of damage.
func decodeState(data []byte) (*state, error) {
	var d document
	if len(data) > maxState {
		return nil, fmt.Errorf("more than %d bytes: %w", maxState, fault.ErrTooLarge)
	}
	if err := decodeStrict(data, &d); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(d.State); d.Sum != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("checksum does not match: %w", fault.ErrDigestMismatch)
	}
	s := &state{}
	if err := decodeStrict(d.State, s); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s.clone(), nil // no nil maps
}

func decodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("trailing data: %w", fault.ErrInvalid)
	}
	return nil
}

// load reads the saved state. A state in the store is the newest one: it is written first. Without one, or with a damaged one, as
// after agent.db was replaced, the copy says what the containers have that run. Without both m.lost is set: what runs is found
// again as its containers are attached.
func (m *Manager) load() error {
	data, err := m.o.Store.Networks()
	if err != nil {
		return fmt.Errorf("read the state of the networks: %w", err)
	}
	path := filepath.Join(m.o.RunDir, copyFile)
	copied, copyErr := bounded.File(os.Open, path, maxState)
	m.copied = copied
	note := "no state of the networks is saved"
	if data != nil {
		s, err := decodeState(data)
		if err == nil {
			m.state, m.saved = s, data
			m.saveCopy(data)
			return nil
		}
		note = fmt.Sprintf("the saved state of the networks is damaged: %v", err)
	}
	var s *state
	if copyErr == nil {
		s, copyErr = decodeState(copied)
	}
	if copyErr != nil {
		m.state, m.lost = (&state{}).clone(), true
		if data != nil || !errors.Is(copyErr, fs.ErrNotExist) { // else it is the first start
			m.notes = append(m.notes, fmt.Sprintf("%s, and its copy cannot be read: it is begun anew: %v", note, copyErr))
		}
		return nil
	}
	m.state = s
	m.notes = append(m.notes, fmt.Sprintf("%s: it is taken from %s", note, path))
	if err := m.commit(s); err != nil { // what runs must not wait for space on the disk: the next change saves it
		m.notes = append(m.notes, err.Error())
	}
	return nil
}

// saveCopy follows each write to the store, so the copy is never ahead of what was decided. One that cannot be written is
// removed: with an old one, containers that were attached since would lose their networks.
func (m *Manager) saveCopy(data []byte) {
	if bytes.Equal(data, m.copied) {
		return
	}
	m.copied = nil
	path := filepath.Join(m.o.RunDir, copyFile)
	err := writeQuick(path, data)
	if err == nil {
		m.copied = data
		return
	}
	if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	m.log.Warn("cannot keep a copy of the state of the networks; the next change tries again", "err", err)
}
