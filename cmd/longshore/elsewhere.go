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

// signatureRepository is the variable with the repository, HOST/PATH, in which signatures are kept: cosign's own.
const signatureRepository = "COSIGN_REPOSITORY"

// signaturePlace is where signatures go; nil: beside the artifact.
func (p *program) signaturePlace() func(context.Context, signing.Store) (signing.Store, error) {
	name := p.getenv(signatureRepository)
	if name == "" {
		return nil
	}
	return func(ctx context.Context, beside signing.Store) (signing.Store, error) {
		if file, ok := beside.(*filebundle.Store); ok { // a file's signatures are beside it
			return file, nil
		}
		return besides(ctx, beside, name)
	}
}

// besides opens the repository for signatures with the client that opened the artifact's.
func besides(ctx context.Context, beside signing.Source, name string) (*registry.Repository, error) {
	repo, ok := beside.(*registry.Repository)
	if !ok {
		return nil, fmt.Errorf("%s: %s is no repository of a registry", signatureRepository, beside.Name())
	}
	if repo.Reference().Scheme == registry.SchemeLayout {
		err := fmt.Errorf("%s: %s is on disk, and its signatures are in it: %w", signatureRepository, repo.Reference(), fault.ErrUnsupported)
		return nil, fault.WithHint(err, "unset "+signatureRepository+" for layouts")
	}
	other, err := repo.Elsewhere(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", signatureRepository, err)
	}
	return other, nil
}

// signedAt is where the signatures of what is in a repository are.
func (p *program) signedAt(ctx context.Context, repo *registry.Repository) (*registry.Repository, error) {
	if name := p.getenv(signatureRepository); name != "" {
		return besides(ctx, repo, name)
	}
	return repo, nil
}

// elsewhereJudge looks for signatures where COSIGN_REPOSITORY says. A policy says itself where they are.
type elsewhereJudge struct {
	judge audit.Judge
	name  string
}

// Judge implements [audit.Judge].
func (j elsewhereJudge) Judge(ctx context.Context, src signing.Source, s audit.Subject) []audit.Check {
	other, err := besides(ctx, src, j.name)
	if err != nil {
		return []audit.Check{{Name: "signature", Result: audit.Unknown, Detail: err.Error(), Err: err}}
	}
	return j.judge.Judge(ctx, other, s)
}

// Unchecked implements [audit.Judge].
func (j elsewhereJudge) Unchecked() []audit.Unchecked { return j.judge.Unchecked() }

// placed is judge with signatures where they are.
func (p *program) placed(judge audit.Judge) audit.Judge {
	if _, isPolicy := judge.(audit.Policy); isPolicy || p.getenv(signatureRepository) == "" {
		return judge
	}
	return elsewhereJudge{judge, p.getenv(signatureRepository)}
}
