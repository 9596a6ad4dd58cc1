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

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	stateFile    = "network.json"
	stateVersion = 2       // 1: one container of a service answered
	maxState     = 8 << 20 // bytes: some ten thousand containers
)

// document is the file around a state. Sum is over the state's bytes as they stand, so that a flipped bit in an address is
// found although it still reads as an address.
type document struct {
	Version int             `json:"version"`
	Sum     string          `json:"sum"`
	State   json.RawMessage `json:"state"`
}

// encodeState is deterministic: equal states are equal bytes.
func encodeState(s *state) ([]byte, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	sum := sha256.Sum256(raw)
	b, err := json.Marshal(document{stateVersion, hex.EncodeToString(sum[:]), raw})
	if err != nil {
		return nil, fmt.Errorf("encode the state of the networks: %w", err)
	}
	return append(b, '\n'), nil
}

// decodeState reads strictly: what it returns passed [state.check]. fault.ErrUnsupported is a file of a newer program; any
// other error is a damaged file.
func decodeState(data []byte) (*state, error) {
	var d document
	if err := decodeStrict(data, &d); err != nil {
		return nil, err
	}
	if d.Version > stateVersion {
		return nil, fault.WithHint(fmt.Errorf("version %d: %w", d.Version, fault.ErrUnsupported),
			"a newer longshore-agent wrote this file; run that one again, or move the file away")
	}
	if d.Version < 1 {
		return nil, fmt.Errorf("version %d: %w", d.Version, fault.ErrInvalid)
	}
	if sum := sha256.Sum256(d.State); d.Sum != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("checksum does not match: %w", fault.ErrDigestMismatch)
	}
	s := &state{}
	if err := decodeStrict(d.State, s); err != nil {
		return nil, err
	}
	if d.Version == 1 {
		s.fromVersion1()
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s.clone(), nil // no nil maps
}

// fromVersion1 finds out which replica each container is of that answers.
func (s *state) fromVersion1() {
	for _, p := range s.Projects {
		if p == nil {
			continue // refused by check
		}
		for _, sv := range p.Services {
			if sv == nil || sv.Active[0] == "" {
				continue
			}
			if a := p.Attachments[sv.Active[0]]; a != nil {
				sv.Active = actives{a.Replica: sv.Active[0]}
			}
		}
	}
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

// readBounded reads a whole file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("read %s: more than %d bytes: %w", path, limit, fault.ErrTooLarge)
	}
	return data, err
}

// loaded is what load found out.
type loaded struct {
	state  *state
	saved  []byte // what the file holds; nil: not known
	copied []byte // what the run directory's copy holds; nil: not known
	notes  []string
	lost   bool // a damaged file, and nothing to replace it with
}

// load reads the saved state. A damaged file is renamed, never overwritten; the copy in the run directory, which is as
// young as the containers that run, takes its place.
func load(dataDir, runDir string) (loaded, error) {
	path, copyPath := filepath.Join(dataDir, stateFile), filepath.Join(runDir, stateFile)
	s, data, err := loadFile(path)
	if err == nil {
		found := loaded{state: s, saved: data}
		if same, err := encodeState(s); err == nil {
			found.saved = same // what an older program wrote is rewritten with the next change, not before: the disk may be full
		}
		if copied, err := readBounded(copyPath, maxState); err == nil { // after a reboot there is none
			found.copied = copied
		}
		return found, nil
	}
	if errors.Is(err, fault.ErrUnsupported) {
		return loaded{}, err
	}
	var found loaded
	missing := errors.Is(err, fs.ErrNotExist)
	if !missing {
		if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrDigestMismatch) && !errors.Is(err, fault.ErrTooLarge) {
			return loaded{}, err // not readable is not damaged
		}
		aside, moveErr := setAside(path)
		if moveErr != nil {
			return loaded{}, moveErr
		}
		found.notes = append(found.notes, fmt.Sprintf("the saved state of the networks was damaged and is now %s: %v", aside, err))
	}
	s, data, copyErr := loadFile(copyPath)
	if copyErr == nil {
		found.state, found.copied = s, data
		found.notes = append(found.notes, fmt.Sprintf("the state of the networks was taken from %s", copyPath))
		if err := saveFile(path, s); err != nil { // the next change saves it: what runs must not wait for space on the disk
			found.notes = append(found.notes, err.Error())
		}
		return found, nil
	}
	found.state, found.lost = (&state{}).clone(), !missing
	return found, nil
}

// loadFile returns what a file says and its bytes.
func loadFile(path string) (*state, []byte, error) {
	data, err := readBounded(path, maxState)
	if err != nil {
		return nil, nil, fmt.Errorf("read the state of the networks: %w", err)
	}
	s, err := decodeState(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read the state of the networks from %s: %w", path, err)
	}
	return s, data, nil
}

// setAside renames a damaged file to a name that its content gives, so that doing it again does no harm.
func setAside(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("set the damaged state of the networks aside: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxState)); err != nil {
		return "", fmt.Errorf("set the damaged state of the networks aside: %w", err)
	}
	aside := path + ".damaged-" + hex.EncodeToString(h.Sum(nil))[:8]
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set the damaged state of the networks aside: %w", err)
	}
	return aside, syncDir(filepath.Dir(path))
}

func saveFile(path string, s *state) error {
	data, err := encodeState(s)
	if err != nil {
		return err
	}
	return writeDurable(path, data)
}

// writeDurable replaces a file: after a power cut it holds the old bytes or the new ones.
func writeDurable(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // half a file on a full disk is of no use
		return fmt.Errorf("save %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// writeQuick replaces a file that need not outlive a power cut.
func writeQuick(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
