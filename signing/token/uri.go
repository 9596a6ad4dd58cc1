// Package token opens keys in PKCS#11 tokens, by their addresses (RFC 7512). The entry points are [Parse] and [Open].
//
// PKCS#11 modules are C libraries, so that only a build with cgo can load them; see [Built].
package token

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ErrNoKey means that the token is there and has no such key.
var ErrNoKey = fmt.Errorf("the token has no such key: %w", fault.ErrNotFound)

// Scheme begins each address of a key in a token.
const Scheme = "pkcs11:"

const maxPIN = 4 << 10 // bytes of a file with a PIN

// URI is what RFC 7512 says of a key, as far as it finds one.
type URI struct {
	Module  string  // the C library; "": none is named
	PIN     *string // pin-value; nil: none
	PINFile string  // pin-source; "": none

	token, serial string
	slot          *int
	object        string
	id            []byte
}

// Parse reads an address, and refuses what it would otherwise have to ignore. Errors never have the PIN.
func Parse(ref string) (URI, error) {
	var u URI
	rest := strings.TrimPrefix(ref, Scheme)
	path, query, _ := strings.Cut(rest, "?")
	shown := Scheme + withoutPIN(path)
	bad := func(format string, args ...any) (URI, error) {
		return URI{}, fmt.Errorf("key %s: %w: %s", shown, fault.ErrInvalid, fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	each := func(list, separator string, set func(name, value string) error) error {
		for part := range strings.SplitSeq(list, separator) {
			if part == "" {
				continue
			}
			name, raw, ok := strings.Cut(part, "=")
			if !ok || seen[name] {
				return fmt.Errorf("%s without a value, or twice", withoutPIN(name))
			}
			seen[name] = true
			value, err := url.PathUnescape(raw)
			if err != nil {
				return fmt.Errorf("%s is escaped wrongly", withoutPIN(name))
			}
			if err := set(name, value); err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(path, ";", u.setPath); err != nil {
		return bad("%v", err)
	}
	if err := each(query, "&", u.setQuery); err != nil {
		return bad("%v", err)
	}
	switch {
	case u.object == "" && len(u.id) == 0:
		return bad("which key? it names neither object nor id")
	case u.token == "" && u.serial == "" && u.slot == nil:
		return bad("which token? it names neither token, serial nor slot-id")
	case u.slot != nil && (u.token != "" || u.serial != "") || u.token != "" && u.serial != "":
		return bad("one of token, serial and slot-id is enough")
	case u.PIN != nil && u.PINFile != "":
		return bad("pin-value and pin-source exclude each other")
	}
	return u, nil
}

func (u *URI) setPath(name, value string) (err error) {
	switch name {
	case "token":
		u.token = value
	case "serial":
		u.serial = value
	case "slot-id":
		slot, err := strconv.Atoi(value)
		if err != nil || slot < 0 {
			return fmt.Errorf("slot-id %q is no number", value)
		}
		u.slot = &slot
	case "object":
		u.object = value
	case "id":
		u.id = []byte(value)
	case "type":
		if value != "private" {
			return fmt.Errorf("type %q does not sign", value)
		}
	case "manufacturer", "model", "slot-manufacturer", "slot-description":
		// Descriptions that tools print; what decides is beside them.
	default:
		return fmt.Errorf("attribute %q is not known", withoutPIN(name))
	}
	return nil
}

func (u *URI) setQuery(name, value string) error {
	switch name {
	case "module-path":
		if !filepath.IsAbs(value) {
			return fmt.Errorf("module-path is not the absolute path of a library")
		}
		u.Module = value
	case "pin-value":
		u.PIN = &value
	case "pin-source":
		file := strings.TrimPrefix(strings.TrimPrefix(value, "file:"), "//")
		if !filepath.IsAbs(file) {
			return fmt.Errorf("pin-source is not the absolute path of a file")
		}
		u.PINFile = file
	default:
		return fmt.Errorf("attribute %q is not known", withoutPIN(name))
	}
	return nil
}

// String names the key without its PIN.
func (u URI) String() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+url.PathEscape(value))
		}
	}
	add("token", u.token)
	add("serial", u.serial)
	if u.slot != nil {
		add("slot-id", strconv.Itoa(*u.slot))
	}
	add("object", u.object)
	if len(u.id) > 0 {
		parts = append(parts, "id=0x"+hex.EncodeToString(u.id))
	}
	return Scheme + strings.Join(parts, ";")
}

// Token is how people call the token.
func (u URI) Token() string {
	switch {
	case u.token != "":
		return u.token
	case u.serial != "":
		return u.serial
	default:
		return "slot " + strconv.Itoa(*u.slot)
	}
}

// ReadPIN reads the PIN file. One that others can read is refused, and one that is empty: it is being written, and an empty PIN would
// cost one of the few tries that a token allows.
func (u URI) ReadPIN() (string, error) {
	what := "PIN file of token " + u.Token()
	if err := Private(what, u.PINFile); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %v", fault.ErrConfig, err) // without the cause: fs.ErrNotExist is a key to be made
	} else if err != nil {
		return "", err
	}
	data, err := bounded.File(os.Open, u.PINFile, maxPIN)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	pin := strings.TrimRight(string(data), "\r\n")
	if pin == "" {
		return "", fmt.Errorf("%s: %s is empty: %w", what, u.PINFile, fault.ErrConfig)
	}
	return pin, nil
}

// Private refuses a file that others may read, or that belongs to another user than the one that runs this program. Its errors begin with
// what the file is.
func Private(what, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return fault.WithHint(fmt.Errorf("%s %s: mode %04o, others may read it: %w", what, file, mode.Perm(), fault.ErrConfig), "chmod 600 "+file)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fault.WithHint(fmt.Errorf("%s %s: it belongs to user %d: %w", what, file, stat.Uid, fault.ErrConfig), "chown it to the user that runs this program")
	}
	return nil
}

// withoutPIN cuts a text where a PIN may begin, for messages.
func withoutPIN(text string) string {
	if i := strings.Index(strings.ToLower(text), "pin-"); i >= 0 {
		return text[:i] + "pin-…"
	}
	return text
}
