package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// NetworkState keeps the state of containers' networks in a file of this name, where a test has no store of an agent.
type NetworkState string

// Networks returns what was saved last; nil: nothing was.
func (f NetworkState) Networks() ([]byte, error) {
	b, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// SaveNetworks replaces the file: after a power cut it holds the old bytes or the new ones.
func (f NetworkState) SaveNetworks(state []byte) error {
	fresh, err := os.Create(string(f) + ".tmp")
	if err != nil {
		return fmt.Errorf("save the networks: %w", err)
	}
	_, err = fresh.Write(state)
	if err = errors.Join(err, fresh.Sync(), fresh.Close()); err != nil {
		return fmt.Errorf("save the networks: %w", err)
	}
	return os.Rename(string(f)+".tmp", string(f))
}
