package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
)

const (
	verifierName = "longshore-verify-image" // a link of this name is the program that containerd's image verifier starts
	verifyImage  = "verify-image"
	maxStdin     = 1 << 20 // bytes of the descriptor that containerd writes
)

// asVerifier makes the command line of a call by containerd: it knows a program's path, no command of it, and writes flags with one dash.
func asVerifier(args []string) []string {
	if len(args) == 0 || filepath.Base(args[0]) != verifierName {
		return args
	}
	line := []string{args[0], verifyImage}
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") {
			a = "-" + a
		}
		line = append(line, a)
	}
	return line
}

var verifyImageCommand = cmdline.Command{
	Name:  verifyImage,
	Usage: "containerd image verifier: accept only images that the trust policy accepts",
	About: "Checks images that other clients pull on this device: containerd's image verifier (io.containerd.image-verifier.v1.bindir)\n" +
		"runs this before its transfer service pulls an image. The running agent decides by the trust policy in use; without an agent\n" +
		"every image is rejected. An image is accepted if a rule for images accepts it or, if no rule covers images, if the accepted\n" +
		"state names its digest.\n" +
		"The reason is printed on stdout. Started through a link named " + verifierName + ", the program needs no command.\n\n" +
		"Examples:\n  ln -s /usr/local/bin/longshore-agent /opt/containerd/image-verifier/bin/" + verifierName + "\n" +
		"  longshore-agent verify-image --name harbor.acme.example/plant/web:2 --digest sha256:… </dev/null",
	Flags: []cmdline.Flag{
		configFlag,
		{Name: "name", Usage: "`REFERENCE` of the image"},
		{Name: "digest", Usage: "`DIGEST` of the image"},
		{Name: "stdin-media-type", Usage: "media `TYPE` of stdin; only a descriptor is read"},
	},
	Run: answerVerifier,
}

func answerVerifier(c *cmdline.Context) error {
	err := askAboutImage(c)
	if err != nil {
		fmt.Fprintln(c.Out, strings.ReplaceAll(err.Error(), "\n", "; ")) // what containerd tells who pulls
	}
	return err
}

func askAboutImage(c *cmdline.Context) error {
	ref, err := registry.ParseImage(c.String("name"))
	if err == nil && ref.Scheme != registry.SchemeOCI {
		err = outcome.Usagef(verifyImage, "%s: --name %q is no image in a registry", verifyImage, c.String("name"))
	}
	if err != nil {
		return err
	}
	d := digest.Digest(c.String("digest"))
	if err := d.Validate(); err != nil {
		return outcome.Usagef(verifyImage, "%s: --digest %q: %v", verifyImage, d, err)
	}
	if ref.Digest != "" && ref.Digest != d {
		return fmt.Errorf("image %s is not %s: %w", ref, d, fault.ErrDigestMismatch)
	}
	if err := sameOnStdin(c, d); err != nil {
		return err
	}
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	v, err := client.VerifyImage(c.Context, ref.Name(), d)
	if errors.Is(err, fault.ErrNotFound) {
		return fmt.Errorf("%w: without the agent the trust policy in force is unknown: %w", err, fault.ErrTemporary)
	}
	if err != nil {
		return err
	}
	if !v.Allowed {
		return refusal(ref, d, v)
	}
	fmt.Fprintf(c.Out, "%s@%s: %s\n", ref.Name(), d, v.Reason)
	return nil
}

// refusal gives what the agent says the exit code that it stands for.
func refusal(ref registry.Reference, d digest.Digest, v agent.ImageVerdict) error {
	code := outcome.Refused
	switch {
	case v.Retry:
		code = outcome.Temporary
	case v.Code == codes.ImageUnsigned, v.Code == codes.ImageSignature, v.Code == codes.ImageDigest:
		code = outcome.Verification
	}
	return outcome.WithCode(fmt.Errorf("image %s@%s: %s (%s)", ref.Name(), d, v.Reason, v.Code), code)
}

// sameOnStdin holds the descriptor that containerd writes against the digest that it names.
func sameOnStdin(c *cmdline.Context, d digest.Digest) error {
	if c.String("stdin-media-type") != ocispec.MediaTypeDescriptor {
		return nil
	}
	data, err := bounded.Read(c.In, maxStdin)
	if err != nil {
		return fmt.Errorf("read stdin: %w", err)
	}
	var desc ocispec.Descriptor
	if err := json.Unmarshal(data, &desc); err != nil {
		return fmt.Errorf("stdin: a descriptor that is not JSON: %w", fault.ErrInvalid)
	}
	if desc.Digest != d {
		return fmt.Errorf("stdin names %s, --digest %s: %w", desc.Digest, d, fault.ErrDigestMismatch)
	}
	return nil
}
