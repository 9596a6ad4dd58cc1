package network

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/bounded"
)

// copyFile is a copy of the saved state in the run directory, which lives as long as the containers. With it they keep their
// networks when agent.db is lost.
const copyFile = "networks.json"

// Store keeps the state of the networks. It is implemented by the agent's store.
type Store interface {
	// Networks returns the state that was saved last; nil: none.
	Networks() ([]byte, error)
	// SaveNetworks returns when the complete state is on the disk; after an error the previous one is still saved.
	SaveNetworks(state []byte) error
}

// load reads the saved state. A state in the store is the newest: it is written first. When it is missing or damaged, as after
// agent.db was replaced, the copy is used. Without both, stateLost is set: running containers are recorded again when they
// are attached.
func (m *Manager) load() error {
	data, err := m.o.Store.Networks()
	if err != nil {
		return fmt.Errorf("read the state of the networks: %w", err)
	}
	path := filepath.Join(m.o.RunDir, copyFile)
	copied, copyErr := bounded.File(os.Open, path, ipam.MaxState)
	m.copied = copied
	note := "no state of the networks is saved"
	if data != nil {
		s, err := ipam.Decode(data)
		if err == nil {
			m.state, m.saved = s, data
			m.saveCopy(data)
			return nil
		}
		note = fmt.Sprintf("the saved state of the networks is damaged: %v", err)
	}
	var s *ipam.State
	if copyErr == nil {
		s, copyErr = ipam.Decode(copied)
	}
	if copyErr != nil {
		m.state, m.stateLost = (&ipam.State{}).Clone(), true
		if data != nil || !errors.Is(copyErr, fs.ErrNotExist) { // otherwise this is the first start
			m.notes = append(m.notes, fmt.Sprintf("%s, and its copy cannot be read: it is begun anew: %v", note, copyErr))
		}
		return nil
	}
	m.state = s
	m.notes = append(m.notes, fmt.Sprintf("%s: it is taken from %s", note, path))
	if err := m.commit(s); err != nil { // running containers must not depend on disk space: the next change saves it
		m.notes = append(m.notes, err.Error())
	}
	return nil
}

// saveCopy follows each write to the store, so the copy is never newer. A copy that cannot be written is removed: with an old one,
// containers that were attached since would lose their networks.
func (m *Manager) saveCopy(data []byte) {
	if bytes.Equal(data, m.copied) {
		return
	}
	m.copied = nil
	path := filepath.Join(m.o.RunDir, copyFile)
	err := replaceFile(path, data)
	if err == nil {
		m.copied = data
		return
	}
	if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	m.log.Warn("cannot keep a copy of the state of the networks; the next change tries again", "err", err)
}
