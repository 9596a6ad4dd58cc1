// Package auths finds and stores registry credentials in the same places as Docker and podman: in config.json and auth.json files
// and in the credential helpers that those name.
//
// Files and their entries are read by oras-go. Its own and go-containerregistry's keychain wait for ever for a helper program
// that hangs, and do not end it when this program ends; the latter also reads only the first file that it finds.
//
// Files are read at each lookup, because a robot account's token may be replaced while an agent runs.
package auths

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxFile bounds a credentials file; a real one is a few kilobytes.
const maxFile = 1 << 20

// Files are the credential files to read, in order. Login writes to the first.
type Files struct {
	Paths []string
	Limit time.Duration // of one call of a credential helper; 0: a minute
}

const defaultLimit = time.Minute

// Find lists the files: explicit, then REGISTRY_AUTH_FILE, Docker's and podman's. They need not exist.
func Find(explicit string, getenv func(string) string) Files {
	var out []string
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
	return Files{Paths: out}
}

// document has the members of a file that are needed to find the right key.
type document struct {
	Auths       map[string]json.RawMessage `json:"auths"`
	CredsStore  string                     `json:"credsStore"`
	CredHelpers map[string]string          `json:"credHelpers"`
}

// Lookup finds the credential for a repository: podman's most specific "host/path" key first, then the host's. The result is the empty credential if
// there is none.
func (f Files) Lookup(ctx context.Context, host, repository string) (auth.Credential, error) {
	for _, file := range f.Paths {
		d, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return auth.EmptyCredential, err
		}
		for _, key := range d.keys(host, repository) {
			store, err := f.store(d, file, key)
			if err != nil {
				return auth.EmptyCredential, err
			}
			cred, err := store.Get(ctx, key)
			if err != nil {
				return auth.EmptyCredential, f.explain(ctx, d, file, key, err)
			}
			if cred != auth.EmptyCredential {
				return cred, nil
			}
		}
	}
	return auth.EmptyCredential, nil
}

// keys are the server addresses under which d may have the credential.
func (d document) keys(host, repository string) []string {
	var out []string
	for path := repository; path != "" && path != "."; {
		if _, ok := d.Auths[host+"/"+path]; ok {
			out = append(out, host+"/"+path)
		}
		i := strings.LastIndexByte(path, '/')
		path = path[:max(i, 0)]
	}
	return append(out, d.wholeHost(host)...)
}

// wholeHost are the keys in d for all of a host: its address if a helper has that, otherwise each spelling in the
// file, Docker's first. A key like "host/team" is of one namespace; oras-go would use it for the whole host.
func (d document) wholeHost(host string) []string {
	server := address(host)
	if d.helper(server) != "" {
		return []string{server}
	}
	var out []string
	for key := range d.Auths {
		if address(key) == server {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		switch server {
		case a:
			return -1
		case b:
			return 1
		}
		return strings.Compare(a, b)
	})
	return out
}

// address is Docker's key for a key or a host: without the scheme and the API version that
// other programs add. Docker Hub has one key for its three names.
func address(key string) string {
	bare := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
	bare = strings.TrimSuffix(strings.TrimSuffix(bare, "/v1"), "/v2")
	if bare == "index.docker.io" {
		bare = "docker.io"
	}
	return credentials.ServerAddressFromRegistry(bare)
}

// helper is the name of the helper program for the credentials of a key; "": they are in the file.
func (d document) helper(key string) string { return cmp.Or(d.CredHelpers[key], d.CredsStore) }

// store is the store of the credentials of a key of a file.
func (f Files) store(d document, file, key string) (credentials.Store, error) {
	if name := d.helper(key); name != "" {
		return helper{name, cmp.Or(f.Limit, defaultLimit)}, nil
	}
	store, err := credentials.NewStore(file, credentials.StoreOptions{AllowPlaintextPut: true})
	if err != nil {
		return nil, unreadable(file)
	}
	return store, nil
}

// explain is why a store did not return a credential, without its message, which may contain the secret.
func (f Files) explain(ctx context.Context, d document, file, key string, err error) error {
	name := d.helper(key)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case name == "":
		return fmt.Errorf("the entry for %s in %s is not base64 of user:password: %w", key, file, fault.ErrConfig)
	}
	what, hint := "failed", "try it by hand: echo "+key+" | "+helperPrefix+name+" get"
	switch {
	case errors.Is(err, errLate):
		what = "did not answer within " + cmp.Or(f.Limit, defaultLimit).String()
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		what, hint = "is not there", "is it installed, and on the PATH of this program?"
	}
	return fault.WithHint(fmt.Errorf("credential helper %s%s, named in %s, %s: %w", helperPrefix, name, file, what, fault.ErrUnauthenticated), hint)
}

func unreadable(file string) error {
	return fmt.Errorf("credentials file %s is not JSON as Docker and podman write it: %w", file, fault.ErrConfig)
}

// notJSON describes an error in a file and its position, without quoting the file, because that may be the secret.
func notJSON(file string, data []byte, err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("credentials file %s: %w: %w", place(file, data, syntax.Offset), syntax, fault.ErrConfig)
	case errors.As(err, &kind):
		what, _, _ := strings.Cut(kind.Value, " ")
		return fmt.Errorf("credentials file %s: %q cannot be a JSON %s: %w", place(file, data, kind.Offset), kind.Field, what, fault.ErrConfig)
	}
	return unreadable(file)
}

// place is FILE:LINE:COLUMN of the byte before an offset.
func place(file string, data []byte, offset int64) string {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return fmt.Sprintf("%s:%d:%d", file, bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
}

// Check reports whether a file that was named explicitly can be read: unlike default files, it must exist.
func Check(file string) error {
	r, err := os.Open(file)
	if err == nil {
		r.Close()
		_, err = read(file)
		return err
	}
	if at, ok := errors.AsType[*os.PathError](err); ok {
		err = at.Err
	}
	return fmt.Errorf("credentials file %s: %w", file, err)
}

func read(file string) (document, error) {
	var d document
	data, err := bounded.File(os.Open, file, maxFile)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		// A file of another user (podman's, under sudo) is not an error.
		return d, os.ErrNotExist
	case errors.Is(err, fault.ErrTooLarge):
		return d, fmt.Errorf("credentials file %s has more than %d bytes: %w", file, maxFile, fault.ErrConfig)
	case err != nil:
		return d, fmt.Errorf("credentials file: %w: %w", err, fault.ErrConfig)
	case strings.TrimSpace(string(data)) == "":
		return d, nil
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, notJSON(file, data, err)
	}
	return d, nil
}

// Target is the file that Store writes to, "" if there is no place to store anything.
func (f Files) Target() string {
	if len(f.Paths) == 0 {
		return ""
	}
	return f.Paths[0]
}

// keeps is the place of a server's credentials: the file itself, or the helper that it names.
func (d document) keeps(file, server string) string {
	helper := d.helper(server)
	if helper == "" {
		return file
	}
	return fmt.Sprintf("%s%s (named in %s)", helperPrefix, helper, file)
}

// Store stores a credential for host: in the helper that the file names, otherwise in the file, readable by its owner only. It
// returns the place.
func (f Files) Store(ctx context.Context, host string, cred auth.Credential) (string, error) {
	file := f.Target()
	if file == "" {
		return "", fmt.Errorf("no file to keep credentials in: %w", fault.ErrInvalid)
	}
	d, err := read(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	server := address(host)
	store, err := f.store(d, file, server)
	if err != nil {
		return "", err
	}
	if err := store.Put(ctx, server, cred); err != nil {
		return "", fmt.Errorf("store credentials of %s by %s: %w", host, file, f.unwritten(ctx, d, file, server, err))
	}
	return d.keeps(file, server), nil
}

// unwritten is why a store did not accept a change; it contains only the operating system's error about the file.
func (f Files) unwritten(ctx context.Context, d document, file, key string, err error) error {
	var path *os.PathError
	switch {
	case d.helper(key) != "":
		return f.explain(ctx, d, file, key, err)
	case errors.As(err, &path):
		return fmt.Errorf("%w: %w", path, fault.ErrConfig)
	}
	return unreadable(file)
}

// Erase removes what is stored for host from every file that has it, in each spelling that Lookup finds, and from the helpers that
// files name. It returns these places.
func (f Files) Erase(ctx context.Context, host string) ([]string, error) {
	var from []string
	for _, file := range f.Paths {
		d, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return from, err
		}
		gone := false
		for _, key := range d.wholeHost(host) {
			there, err := f.eraseKey(ctx, d, file, key)
			if err != nil {
				return from, fmt.Errorf("erase credentials of %s by %s: %w", host, file, err)
			}
			gone = gone || there
		}
		if gone {
			from = append(from, d.keeps(file, address(host)))
		}
	}
	return from, nil
}

// eraseKey reports whether there was anything.
func (f Files) eraseKey(ctx context.Context, d document, file, key string) (bool, error) {
	store, err := f.store(d, file, key)
	if err != nil {
		return false, err
	}
	if cred, err := store.Get(ctx, key); err == nil && cred == auth.EmptyCredential {
		return false, nil
	}
	if err := store.Delete(ctx, key); err != nil {
		return false, f.unwritten(ctx, d, file, key, err)
	}
	return true, nil
}
