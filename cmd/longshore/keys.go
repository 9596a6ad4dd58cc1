package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

const maxSecret = 64 << 10 // bytes of a password or token

var keyGenerateCommand = command{
	name: "generate", args: "[NAME]", max: 1,
	usage: "create a key pair",
	about: "Writes the private key NAME.key, encrypted and readable only by you, and the public key NAME.pub for devices, in " +
		"cosign's format. NAME may contain a directory; the default is longshore. Existing files are not overwritten.",
	examples: []string{"release", "--key-password-file password.txt keys/release"},
	flags:    []cmdline.Flag{keyPasswordFlag},
	run:      (*call).keyGenerate,
}

type keyResult struct {
	Private     string        `json:"private,omitempty"` // file of a new key
	Public      string        `json:"public"`            // file of its public key, or that as PEM
	Algorithm   string        `json:"algorithm"`
	Fingerprint digest.Digest `json:"fingerprint"`

	label, what string // "": the text is Public, nothing else
}

func (r keyResult) text(w io.Writer) {
	if r.label == "" {
		fmt.Fprint(w, r.Public)
		return
	}
	row(w, r.label, "%s", r.what)
	fmt.Fprintf(w, "  Fingerprint: %s\n", r.Fingerprint)
}
func (r keyResult) quietText() string { return r.Fingerprint.String() }

func (c *call) keyGenerate(args []string) error {
	name := "longshore"
	if len(args) == 1 {
		name = strings.TrimSuffix(args[0], ".key")
	}
	if base := filepath.Base(name); name == "" || base == "." || base == string(filepath.Separator) {
		return c.misused("%q is not a file name", name)
	}
	for _, file := range []string{name + ".key", name + ".pub"} {
		if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("generate key %s: %w: %w", name, fault.ErrConflict, cmp.Or(err, errors.New(file+" is there already")))
			return fault.WithHint(err, "choose another name: devices that trust the old key still need it")
		}
	}
	password, err := c.keyPassword(c.String("key-password-file"), name+".key", true)
	if err != nil {
		return err
	}
	private, public, err := sign.GenerateKey(password)
	if err != nil {
		return err
	}
	key, err := signing.ParsePublicKey(filepath.Base(name), public)
	if err != nil {
		return err
	}
	if err := files.WriteNew(name+".key", private, 0o600); err != nil {
		return err
	}
	if err := files.WriteNew(name+".pub", public, 0o644); err != nil {
		return errors.Join(err, os.Remove(name+".key"))
	}
	return c.show(keyResult{name + ".key", name + ".pub", key.Algorithm, key.Fingerprint, "wrote", fmt.Sprintf("%s.key (encrypted), %[1]s.pub", name)})
}

var keyShowCommand = command{
	name: "show", args: "FILE", min: 1, max: 1,
	usage:    "show the type and fingerprint of a public key",
	about:    "Shows the type of a public key and its fingerprint, as policies and signatures use it.",
	examples: []string{"release.pub", "-q release.pub"},
	run:      (*call).keyShow,
}

func (c *call) keyShow(args []string) error {
	keys, err := publicKeys(args)
	if err != nil {
		return err
	}
	return c.show(keyResult{"", args[0], keys[0].Algorithm, keys[0].Fingerprint, "key", fmt.Sprintf("%s (%s)", args[0], keys[0].Algorithm)})
}

// keyPassword returns the password of a key file: from the file from, the environment, or a prompt. twice makes the user
// repeat it.
func (p *program) keyPassword(from, file string, twice bool) ([]byte, error) {
	if from != "" {
		data, err := bounded.File(os.Open, from, maxSecret)
		return bytes.TrimRight(data, "\r\n"), err
	}
	for _, name := range []string{"LONGSHORE_KEY_PASSWORD", "COSIGN_PASSWORD"} {
		if s, set := p.lookup(name); set { // even if empty: that is the password of a key without one
			return []byte(s), nil
		}
	}
	password, err := p.prompt("password of " + file + ": ")
	if err != nil || !twice {
		return password, err
	}
	again, err := p.prompt("repeat the password: ")
	if err == nil && !bytes.Equal(password, again) {
		err = outcome.Usagef("key generate", "key generate: the two passwords differ")
	}
	return password, err
}

// prompt asks the user for a secret.
func (p *program) prompt(question string) ([]byte, error) {
	f := cmdline.Terminal(p.stdin)
	if f == nil {
		err := fmt.Errorf("%s%w: there is no terminal", question, fault.ErrUnauthenticated)
		return nil, fault.WithHint(err, "set LONGSHORE_KEY_PASSWORD, or use --key-password-file")
	}
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	silent := *before
	silent.Lflag, silent.Iflag = silent.Lflag&^unix.ECHO|unix.ICANON|unix.ISIG, silent.Iflag|unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &silent); err != nil {
		return nil, err
	}
	secret, err := p.line(f, question)
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	fmt.Fprintln(p.stderr)
	if err == io.EOF {
		err = fmt.Errorf("%sno password was typed: %w", question, fault.ErrInvalid)
	}
	return secret, err
}

// interruptible is what read returns, or context.Canceled after Ctrl-C: a read of a terminal does not end then.
func interruptible[T any](p *program, read func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	given := make(chan answer, 1)
	go func() {
		value, err := read()
		given <- answer{value, err}
	}()
	select {
	case a := <-given:
		return a.value, a.err
	case <-p.interrupted:
		return *new(T), context.Canceled
	}
}

// ask asks the user for something that is not secret; "" without a terminal.
func (p *program) ask(question string) (string, error) {
	f := cmdline.Terminal(p.stdin)
	if f == nil {
		return "", nil
	}
	line, err := p.line(f, question)
	if err == io.EOF {
		err = nil
	}
	return strings.TrimSpace(string(line)), err
}

// line reads the answer to a question at a terminal; io.EOF: Ctrl-D. term.ReadPassword reads on after that.
func (p *program) line(f *os.File, question string) ([]byte, error) {
	fmt.Fprint(p.stderr, question)
	return interruptible(p, func() (line []byte, err error) {
		for b := make([]byte, 1); len(line) < maxSecret; { // not more than the line: the password may follow
			n, err := f.Read(b)
			if n == 1 && b[0] != '\n' {
				line = append(line, b[0])
				continue
			}
			if err == nil || err == io.EOF && len(line) > 0 {
				return line, nil
			}
			if err != io.EOF {
				err = fmt.Errorf("read stdin: %w", err)
			}
			return nil, err
		}
		return line, nil
	})
}

// registryPassword is the password of a registry; stdin is read only once.
func (c *call) registryPassword() (string, error) {
	if !c.Bool("password-stdin") || c.stdinSecret != "" {
		return cmp.Or(c.stdinSecret, c.String("password")), nil
	}
	line, err := bufio.NewReader(io.LimitReader(c.stdin, maxSecret)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("read stdin: %w", err)
	}
	if c.stdinSecret = strings.TrimRight(line, "\r\n"); c.stdinSecret == "" {
		return "", outcome.Usagef("", "--password-stdin: stdin is empty")
	}
	return c.stdinSecret, nil
}

// keyName is the name of a key: that of its file, without the extension.
func keyName(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

var keyPublicCommand = command{
	name: "public", max: 0,
	usage: "write the public key of a private key",
	about: "Prints the public key of --key as PEM, or writes it to --out: of a key file, or of a key in a PKCS#11 token or a key " +
		"management service.",
	examples: []string{"--key 'pkcs11:token=plant;object=release?module-path=/usr/lib/softhsm/libsofthsm2.so' --out release.pub", "--key awskms:///alias/release"},
	flags:    slices.Concat(keyFlags, []cmdline.Flag{{Name: "out", Usage: "write it to `FILE`, which must not exist"}}),
	run:      (*call).keyPublic,
}

func (c *call) keyPublic(_ []string) error {
	signer, err := c.newSigner(false)
	if err != nil {
		return err
	}
	if signer == nil {
		return c.misused("use --key")
	}
	r := keyResult{Public: string(signer.PublicPEM()), Algorithm: signer.Key().Algorithm, Fingerprint: signer.Key().Fingerprint}
	if file := c.String("out"); file != "" {
		if err := files.WriteNew(file, signer.PublicPEM(), 0o644); err != nil {
			return err
		}
		r.Public, r.label, r.what = file, "wrote", file
	}
	return c.show(r)
}
