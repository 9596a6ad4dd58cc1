package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Desired is the desired state of clients. Its errors: fault.ErrNotFound: it is not in what the client is to run now, or was to
// run before; fault.ErrTemporary: the query failed; others are the reason why there is none.
type Desired interface {
	// Manifest returns the digest of the client's State Manifest.
	Manifest(ctx context.Context, c Client) (digest.Digest, error)
	// Deployment reports whether a deployment is the client's, Bundle whether a bundle is.
	Deployment(ctx context.Context, c Client, id string, d digest.Digest) error
	Bundle(ctx context.Context, c Client, d digest.Digest) error
	// Open opens the content of one of these. Its bytes have been verified.
	Open(ctx context.Context, d digest.Digest) (io.ReadSeekCloser, error)
	// Adopted notes the manifestVersion that a client has: after a loss of the database, what follows must be above it.
	Adopted(c Client, version uint64)
}

const (
	cacheManifest  = "private"
	cacheImmutable = "private, max-age=31536000, immutable"
	mediaYAML      = "application/yaml"
	slowest        = 4 << 10 // bytes a second that a client takes at least
)

func (a *api) getManifest(w http.ResponseWriter, r *http.Request, c Client) *problem {
	if !accepts(r.Header.Values("Accept"), margo.ManifestMediaType) {
		return newProblem(typeCannotGenerate, "Not acceptable", http.StatusNotAcceptable, "the desired state comes as "+margo.ManifestMediaType+" only")
	}
	d, err := a.Desired.Manifest(r.Context(), c)
	if err != nil {
		return a.withheld(err)
	}
	return a.content(w, r, d, margo.ManifestMediaType, cacheManifest)
}

func (a *api) getDeployment(w http.ResponseWriter, r *http.Request, c Client) *problem {
	id, d := r.PathValue("deploymentId"), digest.Digest(r.PathValue("digest"))
	switch err := a.Desired.Deployment(r.Context(), c, id, d); {
	case errors.Is(err, fault.ErrNotFound):
		return newProblem(typeDeploymentNotFound, "Deployment not found", http.StatusNotFound, "the desired state has no deployment "+id+" of this digest")
	case err != nil:
		return a.withheld(err)
	}
	return a.content(w, r, d, mediaYAML, cacheImmutable)
}

func (a *api) getBundle(w http.ResponseWriter, r *http.Request, c Client) *problem {
	d := digest.Digest(r.PathValue("digest"))
	switch err := a.Desired.Bundle(r.Context(), c, d); {
	case errors.Is(err, fault.ErrNotFound):
		return newProblem(typeInvalidBundle, "Bundle not found", http.StatusNotFound, "the desired state has no bundle of this digest")
	case err != nil:
		return a.withheld(err)
	}
	return a.content(w, r, d, margo.BundleMediaType, cacheImmutable)
}

// withheld is the answer when the desired state is not known.
func (a *api) withheld(err error) *problem {
	if errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || errors.Is(err, fault.ErrDenied) {
		return busy("the registry with the desired state cannot be read, and nothing of it is here yet").because(err)
	}
	return blank(http.StatusInternalServerError, "the desired state in the registry cannot be served: "+err.Error()).because(err)
}

// content answers with bytes by their digest, with nothing to who has them already (304), or with the rest of what was broken off.
func (a *api) content(w http.ResponseWriter, r *http.Request, d digest.Digest, media, cache string) *problem {
	h := w.Header()
	etag := `"` + d.String() + `"`
	if matches(r.Header.Values("If-None-Match"), etag) {
		h.Set("ETag", etag)
		h.Set("Cache-Control", cache)
		w.WriteHeader(http.StatusNotModified)
		a.metrics.desired.WithLabelValues("unchanged").Inc()
		return nil
	}
	f, err := a.Desired.Open(r.Context(), d)
	if err != nil {
		return busy("the content is read from the registry again").because(err)
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > slowest*int64(minTime/time.Second) {
		// A server that gives reports half a minute would cut a bundle off on a slow line. Without a deadline nothing is lost.
		_ = http.NewResponseController(w).SetWriteDeadline(a.Now().Add(time.Duration(size/slowest) * time.Second))
	}
	h.Set("ETag", etag)
	h.Set("Cache-Control", cache)
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
	a.metrics.desired.WithLabelValues(kindsOf[media]).Inc()
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

// kindsOf names media types in metrics.
var kindsOf = map[string]string{margo.ManifestMediaType: "manifest", mediaYAML: "deployment", margo.BundleMediaType: "bundle"}

// minTime is the minimum time of every response.
const minTime = 10 * time.Second

// matches reports whether If-None-Match has an ETag (RFC 9110, 13.1.2: the weak comparison).
func matches(header []string, etag string) bool {
	for _, h := range header {
		for tag := range strings.SplitSeq(h, ",") {
			if tag = strings.TrimSpace(tag); tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
				return true
			}
		}
	}
	return false
}

// accepts reports whether Accept takes a media type (RFC 9110, 12.5.1): the most specific range that matches decides. Without
// the header every type is taken.
func accepts(header []string, media string) bool {
	all := strings.TrimSpace(strings.Join(header, ","))
	if all == "" {
		return true
	}
	group, _, _ := strings.Cut(media, "/")
	best, taken := 0, false
	for text := range strings.SplitSeq(all, ",") {
		kind, params, _ := strings.Cut(text, ";")
		specific := 0
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case media:
			specific = 3
		case group + "/*":
			specific = 2
		case "*/*":
			specific = 1
		}
		if specific > 0 && specific >= best {
			wanted := quality(params) > 0
			taken = wanted || specific == best && taken
			best = specific
		}
	}
	return taken
}

// quality is the weight of a media range; 1 if it is absent or malformed.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		if name, value, ok := strings.Cut(strings.TrimSpace(p), "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				return q
			}
		}
	}
	return 1
}
