package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// listKind is the kind of list that oras-go reads page by page.
type listKind int

const (
	listTags listKind = iota
	listReferrers
)

type listKey struct{}

// listing marks the requests of a list for [access.Do]: the address of a further page is chosen by the registry and does not show
// the kind of the list.
func listing(ctx context.Context, kind listKind) context.Context {
	return context.WithValue(ctx, listKey{}, kind)
}

// errNoAPI: the registry answered that it has no referrers API.
var errNoAPI = errors.New("no referrers API")

var errNoList = fmt.Errorf("a list that is not JSON of its kind: %w", fault.ErrInvalid)

// page reads a page of a list and returns one that oras-go decodes and follows correctly: oras-go treats a page
// above its bound as truncated, rejects all referrers because of one malformed descriptor, and uses the
// first Link as the next page.
func (a *access) page(ctx context.Context, resp *http.Response, kind listKind) error {
	data, err := readAtMost(resp, maxIndex)
	media := mediaType(resp)
	switch {
	case err != nil:
		return err
	case kind == listReferrers && media != ocispec.MediaTypeImageIndex:
		return errNoAPI
	case isPage(resp, data):
		return errPage
	case !json.Valid(data):
		return errNoList
	}
	if kind == listReferrers {
		e, err := parseReferrers(data)
		if err != nil {
			return err
		}
		a.logSkipped(ctx, e.skipped)
		data = slices.Concat([]byte(`{"manifests":[`), bytes.Join(e.raw, []byte(",")), []byte("]}")) // not longer than its bound
	}
	next, err := wire.NextPage(resp)
	if err != nil {
		return err
	}
	resp.Header.Del("Link")
	if next != nil {
		resp.Header.Set("Link", "<"+next.String()+">")
	}
	resp.Header.Set("Content-Type", media) // without parameters, because oras-go compares all of it
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return nil
}

// logSkipped reports descriptors of referrers that were left out.
func (a *access) logSkipped(ctx context.Context, skipped int) {
	if skipped > 0 {
		a.log.DebugContext(ctx, "referrers left out: their descriptors are malformed", "registry", a.host, "repository", a.repo.Reference.Repository, "number", skipped)
	}
}
