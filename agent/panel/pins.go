package panel

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	maxPINFile = 64 << 10
	maxPeople  = 200
	maxName    = 64
	maxCost    = 14 // of bcrypt: 1 s on a computer, and several on a small device
	minPIN     = 6
	maxPIN     = 72 // bytes: bcrypt takes no more
)

// person may log in.
type person struct{ name, hash string }

// People are those who may log in.
type People []person

// ReadPINs reads a file of people: lines "name:hash", hashes of bcrypt, as `longshore-agent panel-pin` and `htpasswd -B` write them. Empty lines
// and those that begin with # are left out. Nobody but its owner may read the file, who is the user that runs the agent: a PIN is short.
func ReadPINs(file string) (People, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("PIN file: %w", err)
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return nil, fault.WithHint(fmt.Errorf("PIN file %s: mode %04o, others may read it: %w", file, mode.Perm(), fault.ErrConfig), "chmod 600 "+file)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return nil, fault.WithHint(fmt.Errorf("PIN file %s: it belongs to user %d: %w", file, stat.Uid, fault.ErrConfig), "chown root "+file)
	}
	data, err := bounded.File(os.Open, file, maxPINFile)
	if err != nil {
		return nil, fmt.Errorf("PIN file: %w", err)
	}
	return parsePINs(file, data)
}

// parsePINs reports every error with its line. Hashes are in none.
func parsePINs(file string, data []byte) (People, error) {
	bad := &strict.Error{File: file}
	var all People
	lines := bytes.Split(data, []byte("\n"))
	for i, line := range lines {
		fail := func(format string, args ...any) {
			bad.Faults = append(bad.Faults, strict.Fault{Line: i + 1, Column: 1, Message: fmt.Sprintf(format, args...)})
		}
		text := strings.TrimRight(string(line), " \t\r")
		if text == "" || text[0] == '#' {
			continue
		}
		name, hash, ok := strings.Cut(text, ":")
		cost, err := bcrypt.Cost([]byte(hash))
		switch {
		case !ok:
			fail("is not a line name:hash")
		case CheckName(name) != nil:
			fail("%v", CheckName(name))
		case err != nil || len(hash) != 60:
			fail("has no hash of bcrypt; write it with: longshore-agent panel-pin NAME")
		case cost > maxCost:
			fail("has a hash of cost %d, more than %d", cost, maxCost)
		case all.find(name) != nil:
			fail("names somebody twice")
		case len(all) == maxPeople:
			fail("is one person more than the %d that are allowed", maxPeople)
		default:
			all = append(all, person{name, hash})
		}
		if len(bad.Faults) == 20 {
			break
		}
	}
	switch {
	case len(bad.Faults) > 0:
		return nil, bad
	case len(all) == 0:
		bad.Faults = []strict.Fault{{Message: "names nobody", Hint: "add somebody: longshore-agent panel-pin NAME"}}
		return nil, bad
	}
	return all, nil
}

// CheckName refuses what cannot be the name of a person in a PIN file.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName || strings.TrimSpace(name) != name:
		return fmt.Errorf("the name is empty, long, or has spaces around it: %w", fault.ErrInvalid)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == ':' || r == 0x7f || r == 0xfffd }), name[0] == '#':
		return fmt.Errorf("the name has a colon or a control character, or begins with #: %w", fault.ErrInvalid)
	}
	return nil
}

// NewPIN is a line of a PIN file.
func NewPIN(name, pin string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if len(pin) < minPIN || len(pin) > maxPIN {
		return "", fmt.Errorf("a PIN has %d to %d characters: %w", minPIN, maxPIN, fault.ErrInvalid)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(pin), bcrypt.DefaultCost)
	if err != nil {
		return "", fmt.Errorf("hash the PIN: %w", err)
	}
	return name + ":" + string(hash), nil
}

func (l People) find(name string) *person {
	for i := range l {
		if l[i].name == name {
			return &l[i]
		}
	}
	return nil
}

// check returns whose name and PIN these are; nil: nobody's. A name that nobody has takes as long as one that somebody has.
func (l People) check(name, pin string) *person {
	who, other := l.find(name), l[0]
	if who != nil {
		other = *who
	}
	if err := bcrypt.CompareHashAndPassword([]byte(other.hash), []byte(pin)); err != nil || who == nil {
		return nil
	}
	return who
}
