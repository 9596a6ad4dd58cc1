// Package auths finds and keeps registry credentials where Docker and podman keep them: in config.json and auth.json files
// and in the credential helpers that those name.
//
// Files are read anew at each question: a robot account's token is replaced behind a long-running agent's back.
package auths

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxFile bounds a credentials file; a real one is a few kilobytes.
const maxFile = 1 << 20

// Files are the credential files to look into, in order. The first is also where Login writes.
type Files []string

// Find lists the files: explicit, then REGISTRY_AUTH_FILE, Docker's and podman's. They need not exist.
func Find(explicit string, getenv func(string) string) Files {
	var out Files
	add := func(base string, parts ...string) {
		if base != "" {
			out = append(out, filepath.Join(append([]string{base}, parts...)...))
		}
	}
	add(explicit)
	add(getenv("REGISTRY_AUTH_FILE"))
	home := getenv("HOME")
	if d := getenv("DOCKER_CONFIG"); d != "" {
		add(d, "config.json")
	} else {
		add(home, ".docker", "config.json")
	}
	add(getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	if d := getenv("XDG_CONFIG_HOME"); d != "" {
		add(d, "containers", "auth.json")
	} else {
		add(home, ".config", "containers", "auth.json")
	}
	return out
}

// document is what of a file has to be known to ask for the right key.
type document struct {
	Auths       map[string]json.RawMessage `json:"auths"`
	CredsStore  string                     `json:"credsStore"`
	CredHelpers map[string]string          `json:"credHelpers"`
}

// Lookup finds the credential for a repository: podman's most specific "host/path" key first, then the host's. Nothing
// found is the empty credential.
func (f Files) Lookup(ctx context.Context, host, repository string) (auth.Credential, error) {
	for _, file := range f {
		d, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return auth.EmptyCredential, err
		}
		for _, key := range d.keys(host, repository) {
			store, err := credentials.NewStore(file, credentials.StoreOptions{})
			if err != nil {
				return auth.EmptyCredential, unreadable(file)
			}
			cred, err := store.Get(ctx, key)
			if err != nil {
				return auth.EmptyCredential, d.explain(ctx, file, key, err)
			}
			if cred != auth.EmptyCredential {
				return cred, nil
			}
		}
	}
	return auth.EmptyCredential, nil
}

// keys are the server addresses under which d may hold what is asked for.
func (d document) keys(host, repository string) []string {
	var out []string
	for path := repository; path != "" && path != "."; {
		if _, ok := d.Auths[host+"/"+path]; ok {
			out = append(out, host+"/"+path)
		}
		i := strings.LastIndexByte(path, '/')
		path = path[:max(i, 0)]
	}
	server := credentials.ServerAddressFromRegistry(host)
	if d.CredsStore != "" || d.CredHelpers[server] != "" || d.hasHost(server) {
		out = append(out, server)
	}
	return out
}

// hasHost leaves out keys like "host/team": they are of one namespace, oras-go would take them for the whole host.
func (d document) hasHost(server string) bool {
	if _, ok := d.Auths[server]; ok {
		return true
	}
	for key := range d.Auths {
		bare := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
		for _, version := range []string{"", "/v1", "/v2"} {
			if bare == server+version {
				return true
			}
		}
	}
	return false
}

// explain leaves out what the library says about a file's content: it repeats the secret.
func (d document) explain(ctx context.Context, file, key string, err error) error {
	helper := d.CredHelpers[key]
	if helper == "" {
		helper = d.CredsStore
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case helper != "":
		return fault.WithHint(fmt.Errorf("credential helper docker-credential-%s, named in %s, did not answer: %w", helper, file, fault.ErrUnauthenticated),
			"is it installed and on the PATH of this program?")
	}
	return fmt.Errorf("the entry for %s in %s is not base64 of user:password: %w", key, file, fault.ErrInvalid)
}

func unreadable(file string) error {
	return fmt.Errorf("credentials file %s is not JSON as Docker and podman write it: %w", file, fault.ErrInvalid)
}

// notJSON tells what is wrong with a file and where, without what stands there: it may be the secret.
func notJSON(file string, data []byte, err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("credentials file %s: %w: %w", place(file, data, syntax.Offset), syntax, fault.ErrInvalid)
	case errors.As(err, &kind):
		what, _, _ := strings.Cut(kind.Value, " ")
		return fmt.Errorf("credentials file %s: %q cannot be a JSON %s: %w", place(file, data, kind.Offset), kind.Field, what, fault.ErrInvalid)
	}
	return unreadable(file)
}

// place is FILE:LINE:COLUMN of the byte before an offset.
func place(file string, data []byte, offset int64) string {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return fmt.Sprintf("%s:%d:%d", file, bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
}

// Check tells whether a file that somebody named can be read: unlike those that are looked for, it has to be there.
func Check(file string) error {
	r, err := os.Open(file)
	if err == nil {
		r.Close()
		_, err = read(file)
		return err
	}
	var at *os.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("credentials file %s: %w", file, err)
}

func read(file string) (document, error) {
	var d document
	r, err := os.Open(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			// A file of another user (podman's, under sudo) is not ours to complain about.
			return d, os.ErrNotExist
		}
		return d, fmt.Errorf("credentials file: %w: %w", err, fault.ErrInvalid)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return d, fmt.Errorf("credentials file: %w: %w", err, fault.ErrInvalid)
	}
	if len(data) > maxFile {
		return d, fmt.Errorf("credentials file %s has more than %d bytes: %w", file, maxFile, fault.ErrTooLarge)
	}
	if strings.TrimSpace(string(data)) == "" {
		return d, nil
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, notJSON(file, data, err)
	}
	return d, nil
}

// Target is the file that Store writes to, "" when there is no place to keep anything.
func (f Files) Target() string {
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

// Store keeps a credential for host: in the helper that the file names, else in the file, readable by its owner only.
func (f Files) Store(ctx context.Context, host string, cred auth.Credential) (string, error) {
	file := f.Target()
	if file == "" {
		return "", fmt.Errorf("no file to keep credentials in: %w", fault.ErrInvalid)
	}
	if _, err := read(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	store, err := credentials.NewStore(file, credentials.StoreOptions{AllowPlaintextPut: true})
	if err != nil {
		return "", unreadable(file)
	}
	if err := store.Put(ctx, credentials.ServerAddressFromRegistry(host), cred); err != nil {
		return "", fmt.Errorf("store credentials of %s by %s: %w", host, file, firstPathError(err))
	}
	return file, nil
}

// firstPathError keeps of an error only what the operating system said; a helper's words may repeat what it was given.
func firstPathError(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%w: %w", path, fault.ErrInvalid)
	}
	return fmt.Errorf("the credential helper refused: %w", fault.ErrInvalid)
}

// Erase removes what is stored for host from every file that has it, and tells from which.
func (f Files) Erase(ctx context.Context, host string) ([]string, error) {
	var from []string
	server := credentials.ServerAddressFromRegistry(host)
	for _, file := range f {
		d, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return from, err
		}
		if _, ok := d.Auths[server]; !ok && d.CredsStore == "" && d.CredHelpers[server] == "" {
			continue
		}
		store, err := credentials.NewStore(file, credentials.StoreOptions{})
		if err != nil {
			return from, unreadable(file)
		}
		cred, err := store.Get(ctx, server)
		if err == nil && cred == auth.EmptyCredential {
			continue
		}
		if err := store.Delete(ctx, server); err != nil {
			return from, fmt.Errorf("erase credentials of %s by %s: %w", host, file, firstPathError(err))
		}
		from = append(from, file)
	}
	return from, nil
}
