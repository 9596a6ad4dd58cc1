package main

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/filebundle"
)

// signatureVariable is cosign's variable with the repository, HOST/PATH, that stores signatures.
const signatureVariable = "COSIGN_REPOSITORY"

// signatureStore returns where to store signatures; nil means beside the artifact.
func (p *program) signatureStore() func(context.Context, signing.Store) (signing.Store, error) {
	name := p.getenv(signatureVariable)
	if name == "" {
		return nil
	}
	return func(ctx context.Context, beside signing.Store) (signing.Store, error) {
		if file, ok := beside.(*filebundle.Store); ok { // signatures of a file are files
			return file, nil
		}
		return signatureRepository(ctx, beside, name)
	}
}

// signatureRepository opens the repository of signatures with the client that opened the artifact's.
func signatureRepository(ctx context.Context, beside signing.Source, name string) (*registry.Repository, error) {
	repo, ok := beside.(*registry.Repository)
	if !ok {
		return nil, fmt.Errorf("%s: %s is not a repository in a registry", signatureVariable, beside.Name())
	}
	if repo.Reference().Scheme == registry.SchemeLayout {
		err := fmt.Errorf("%s: %s is a layout on disk, which stores its own signatures: %w", signatureVariable, repo.Reference(), fault.ErrUnsupported)
		return nil, fault.WithHint(err, "unset "+signatureVariable+" for layouts")
	}
	other, err := repo.Elsewhere(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", signatureVariable, err)
	}
	return other, nil
}

// signaturesOf returns the repository with the signatures of artifacts in repo.
func (p *program) signaturesOf(ctx context.Context, repo *registry.Repository) (*registry.Repository, error) {
	if name := p.getenv(signatureVariable); name != "" {
		return signatureRepository(ctx, repo, name)
	}
	return repo, nil
}

// remoteSignatures reads signatures from the repository of COSIGN_REPOSITORY. A policy names that repository itself.
type remoteSignatures struct {
	judge  audit.Judge
	name   string
	places audit.Places
}

// Judge implements [audit.Judge].
func (j remoteSignatures) Judge(ctx context.Context, src signing.Source, s audit.Subject) []audit.Check {
	other, err := j.place(ctx, src)
	if err != nil {
		return []audit.Check{{Name: "signature", Result: audit.Unknown, Detail: err.Error(), Err: err}}
	}
	return j.judge.Judge(ctx, other, s)
}

// place opens the repository of signatures where everything else is read, which may be media.
func (j remoteSignatures) place(ctx context.Context, src signing.Source) (signing.Source, error) {
	if repo, ok := src.(*registry.Repository); ok && repo.Reference().Scheme == registry.SchemeLayout {
		return signatureRepository(ctx, repo, j.name)
	}
	return j.places.Place(ctx, j.name)
}

// Unchecked implements [audit.Judge].
func (j remoteSignatures) Unchecked() []audit.Unchecked { return j.judge.Unchecked() }
