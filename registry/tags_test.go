package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// A device's own tags are found among many, with one request where the registry lists in order, and correctly where it does not.
func TestTagsWithPrefix(t *testing.T) {
	t.Parallel()
	var all []string
	for device := range 3000 {
		all = append(all, fmt.Sprintf("press-%04d", device), fmt.Sprintf("press-%04d.v1", device), fmt.Sprintf("press-%04d.v10", device))
	}
	slices.Sort(all)
	byTime := slices.Clone(all)
	slices.Reverse(byTime)
	for _, c := range []struct {
		name     string
		list     []string
		noLast   bool // the registry ignores "last" and sends links
		requests int
	}{
		{"in order", all, false, 1},
		{"without last", all, true, 11},
		{"newest first", byTime, true, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			requests := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/tags/list") {
					return
				}
				requests++
				q := r.URL.Query()
				n, _ := strconv.Atoi(q.Get("n"))
				from, _ := strconv.Atoi(q.Get("from"))
				if last := q.Get("last"); last != "" && !c.noLast {
					i, found := slices.BinarySearch(c.list, last)
					if from = i; found {
						from++
					}
				}
				to := min(from+n, len(c.list))
				if to < len(c.list) {
					w.Header().Set("Link", fmt.Sprintf(`<%s?n=%d&from=%d>; rel="next"`, r.URL.Path, n, to))
				}
				if err := json.NewEncoder(w).Encode(map[string]any{"tags": c.list[from:to]}); err != nil {
					t.Error(err)
				}
			}))
			defer s.Close()
			repo := openName(t, newClient(t, registry.Options{}), strings.TrimPrefix(s.URL, "http://")+"/plant/state")
			got, err := repo.TagsWithPrefix(t.Context(), "press-1200.v")
			if diff := cmp.Diff([]string{"press-1200.v1", "press-1200.v10"}, got); err != nil || diff != "" {
				t.Errorf("TagsWithPrefix = %v (-want +got):\n%s", err, diff)
			}
			if requests > c.requests {
				t.Errorf("%d requests, want at most %d", requests, c.requests)
			}
		})
	}
}

// A list goes on at the registry that it began at, and nowhere else: the error is final, and no request leaves.
func TestListsStayAtTheirRegistry(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String() + " " + r.Header.Get("Authorization")
	}))
	defer elsewhere.Close()
	host := strings.TrimPrefix(elsewhere.URL, "http://")
	for link, want := range map[string]error{
		`<http://` + host + `/v2/next>; rel="next"`:                   fault.ErrUnsupported,
		`</1>; rel="prev", <http://` + host + `/v2/next>; rel="next"`: fault.ErrUnsupported,
		`<//` + host + `/v2/next>; rel=next`:                          fault.ErrUnsupported,
		`<http://release:secret@` + host + `/v2/next>; rel="next"`:    fault.ErrUnsupported,
		`<http://` + host: fault.ErrInvalid,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _, known := r.BasicAuth(); !known {
				w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header()["Link"] = []string{link}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			_, _ = w.Write([]byte(`{"tags":["a"],"manifests":[{"digest":"` + someDigest + `","size":5}]}`))
		}))
		client := newClient(t, registry.Options{RetryBudget: -1, Username: "release", Password: "secret"})
		repo := openName(t, client, strings.TrimPrefix(s.URL, "http://")+"/plant/state")
		_, err := repo.Tags(t.Context())
		if !errors.Is(err, want) || fault.Retryable(err) {
			t.Errorf("Tags with %q = %v, want %v", link, err, want)
		}
		_, err = repo.Referrers(t.Context(), ocispec.Descriptor{Digest: someDigest})
		if !errors.Is(err, want) || fault.Retryable(err) {
			t.Errorf("Referrers with %q = %v, want %v", link, err, want)
		}
		s.Close()
	}
	if len(asked) != 0 {
		t.Errorf("the other host was asked for %s", <-asked)
	}
}

// A list goes on at the link whose relation is "next", wherever on the registry that leads and whatever stands beside it.
func TestListsFollowTheNextLink(t *testing.T) {
	t.Parallel()
	for _, link := range []string{
		`</pages/2>; rel="next"`,
		`<http://HOST/pages/2>; title="a, <b>; c"; rel="next"`,
		`<../../../../pages/2>; rel=next`,
		`</pages/0>; rel="prev first", </pages/2>; rel="last next"`,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			switch {
			case r.URL.Path == "/pages/2":
				// The last page names only the one before; it is bounded and filtered as the first.
				w.Header().Set("Link", `</pages/1>; rel="prev"`)
				_, _ = w.Write([]byte(`{"tags":["b"],"manifests":[{"digest":7},{"digest":"` + string(digest.FromString("2")) + `","size":5}]}`))
			case strings.HasSuffix(r.URL.Path, "/tags/list") && r.URL.Query().Get("last") == "", strings.Contains(r.URL.Path, "/referrers/"):
				w.Header().Set("Link", strings.ReplaceAll(link, "HOST", r.Host))
				_, _ = w.Write([]byte(`{"tags":["a"],"manifests":[{"digest":"` + string(digest.FromString("1")) + `","size":5}]}`))
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		repo := openName(t, newClient(t, registry.Options{RetryBudget: -1}), strings.TrimPrefix(s.URL, "http://")+"/plant/state")
		if tags, err := repo.Tags(t.Context()); err != nil || !slices.Equal(tags, []string{"a", "b"}) {
			t.Errorf("Tags with %q = %v, %v, want a and b", link, tags, err)
		}
		if list, err := repo.Referrers(t.Context(), ocispec.Descriptor{Digest: someDigest}); err != nil || len(list) != 2 {
			t.Errorf("Referrers with %q = %v, %v, want 2", link, list, err)
		}
		s.Close()
	}
}
