package attack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/testenv"
)

// endlessStep is how much of an endless answer is written at a time.
const endlessStep = 64 << 10

// Withhold says that the thing does not exist.
func Withhold() testenv.Effect { return testenv.Status(http.StatusNotFound, 0) }

// Instead serves what is at another path of the registry: an old digest for a tag, one blob for another.
func Instead(path string) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		other := r.Clone(r.Context())
		other.URL.Path, other.URL.RawPath = path, ""
		next.ServeHTTP(w, other)
	}
}

// Serve answers with these bytes under their own digest, whatever was asked for. HEAD gets the headers alone.
func Serve(mediaType string, body []byte) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)
		if r.Method != http.MethodHead {
			_, _ = w.Write(body)
		}
	}
}

// Drip gives the true answer, so many bytes at a time and a pause before each.
func Drip(bytes int, pause time.Duration) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen := httptest.NewRecorder()
		next.ServeHTTP(seen, r)
		for k, v := range seen.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(seen.Code)
		flush := http.NewResponseController(w).Flush
		for piece := range slices.Chunk(seen.Body.Bytes(), bytes) {
			_ = flush()
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
}

// Endless never stops sending. It announces size bytes; with 0 it does not say how many will come.
func Endless(mediaType string, size int64) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", mediaType)
		if size > 0 {
			w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		}
		w.WriteHeader(http.StatusOK)
		if r.Method == http.MethodHead {
			return
		}
		step := []byte(`{"a":"` + strings.Repeat("x", endlessStep) + `",`)
		for r.Context().Err() == nil {
			if _, err := w.Write(step); err != nil {
				return
			}
		}
	}
}

// Inflate adds n entries before the true ones of a list of referrers. They look like signatures and lead nowhere.
func Inflate(n int) testenv.Effect {
	return list(func(entries []ocispec.Descriptor) []ocispec.Descriptor {
		var more []ocispec.Descriptor
		for i := range n {
			sum := sha256.Sum256([]byte(strconv.Itoa(i)))
			more = append(more, ocispec.Descriptor{
				MediaType: ocispec.MediaTypeImageManifest, Size: 700 + int64(i%100),
				Digest:       digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum[:])),
				ArtifactType: "application/vnd.dev.sigstore.bundle.v0.3+json",
			})
		}
		return append(more, entries...)
	})
}

// Shuffle lists referrers in another order each time.
func Shuffle() testenv.Effect {
	return list(func(entries []ocispec.Descriptor) []ocispec.Descriptor {
		rand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		return entries
	})
}

// Only lists those referrers that keep likes, and is silent about the others.
func Only(keep func(ocispec.Descriptor) bool) testenv.Effect {
	return list(func(entries []ocispec.Descriptor) []ocispec.Descriptor {
		return slices.DeleteFunc(entries, func(d ocispec.Descriptor) bool { return !keep(d) })
	})
}

// Lists has these entries in the place of a list of referrers.
func Lists(entries ...ocispec.Descriptor) testenv.Effect {
	return list(func([]ocispec.Descriptor) []ocispec.Descriptor { return entries })
}

// Also adds entries before the true ones of a list of referrers.
func Also(more ...ocispec.Descriptor) testenv.Effect {
	return list(func(entries []ocispec.Descriptor) []ocispec.Descriptor { return slices.Concat(more, entries) })
}

// Claim answers to a manifest with a subject that it is listed among the subject's referrers, whether the registry has such
// lists or not.
func Claim() testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var m ocispec.Manifest
		if json.Unmarshal(body, &m) == nil && m.Subject != nil {
			w.Header().Set("OCI-Subject", m.Subject.Digest.String())
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	}
}

// list changes a list of referrers, also one that is not there: a registry without one gets one. The headers are those of
// the new list.
func list(change func([]ocispec.Descriptor) []ocispec.Descriptor) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen := httptest.NewRecorder()
		ask := r.Clone(r.Context())
		ask.Method = http.MethodGet
		next.ServeHTTP(seen, ask)
		var index ocispec.Index
		if seen.Code != http.StatusOK || json.Unmarshal(seen.Body.Bytes(), &index) != nil {
			index = ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
		}
		index.Manifests = change(index.Manifests)
		data, err := json.Marshal(index)
		if err != nil {
			panic(err) // what was read as JSON can be written
		}
		Serve(ocispec.MediaTypeImageIndex, data)(w, r, nil)
	}
}

// Pages lists nothing and says that there is another page, for ever.
func Pages() testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		page, _ := strconv.Atoi(r.URL.Query().Get("page")) // none is the first
		w.Header().Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, r.URL.Path, page+1))
		Serve(ocispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"mediaType":"`+ocispec.MediaTypeImageIndex+`","manifests":[]}`))(w, r, nil)
	}
}

// Redirect sends the client elsewhere.
func Redirect(to string) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
	}
}
