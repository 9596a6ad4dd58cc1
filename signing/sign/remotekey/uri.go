package remotekey

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const schemePKCS11 = "pkcs11:"

// pkcs11URI is what RFC 7512 says of a key, as far as it finds one.
type pkcs11URI struct {
	token, serial string
	slot          *int
	object        string
	id            []byte
	module        string
	pin           *string
}

// parsePKCS11 reads an URI, and refuses what it would otherwise have to ignore. Errors never have the PIN.
func parsePKCS11(ref string) (pkcs11URI, error) {
	var u pkcs11URI
	rest := strings.TrimPrefix(ref, schemePKCS11)
	path, query, _ := strings.Cut(rest, "?")
	shown := schemePKCS11 + path
	bad := func(format string, args ...any) (pkcs11URI, error) {
		return pkcs11URI{}, fmt.Errorf("key %s: %w: %s", shown, fault.ErrInvalid, fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	each := func(list, separator string, set func(name, value string) error) error {
		for part := range strings.SplitSeq(list, separator) {
			if part == "" {
				continue
			}
			name, raw, ok := strings.Cut(part, "=")
			if !ok || seen[name] {
				return fmt.Errorf("%s without a value, or twice", name)
			}
			seen[name] = true
			value, err := url.PathUnescape(raw)
			if err != nil {
				return fmt.Errorf("%s is escaped wrongly", name)
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
	}
	return u, nil
}

func (u *pkcs11URI) setPath(name, value string) (err error) {
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
		return fmt.Errorf("attribute %q is not known", name)
	}
	return nil
}

func (u *pkcs11URI) setQuery(name, value string) error {
	switch name {
	case "module-path":
		u.module = value
	case "pin-value":
		u.pin = &value
	default:
		return fmt.Errorf("attribute %q is not known", name)
	}
	return nil
}

// String names the key without its PIN.
func (u pkcs11URI) String() string {
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
	return schemePKCS11 + strings.Join(parts, ";")
}

// name is how people call the token.
func (u pkcs11URI) tokenName() string {
	switch {
	case u.token != "":
		return u.token
	case u.serial != "":
		return u.serial
	default:
		return "slot " + strconv.Itoa(*u.slot)
	}
}
