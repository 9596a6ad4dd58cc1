package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

const (
	rawConnections = 48 // as many as the program publishes with
	rawTime        = 3 * time.Second
)

// raw is how many manifests a second a client puts that does nothing else, each other bytes under a tag of its own.
func (s *Stage) raw(ctx context.Context) (float64, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: rawConnections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	empty := ocispec.DescriptorEmptyJSON
	base := s.server.URL + "/v2/plant/raw"
	if err := send(ctx, client, http.MethodPost, base+"/blobs/uploads/?digest="+empty.Digest.String(), "application/octet-stream", empty.Data); err != nil {
		return 0, err
	}
	from := s.put.Load()
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range rawConnections {
		g.Go(func() error {
			for time.Since(begin) < rawTime {
				i := s.put.Add(1)
				m := ocispec.Manifest{
					Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.test.raw",
					Config: empty, Layers: []ocispec.Descriptor{empty}, Annotations: map[string]string{"n": fmt.Sprint(i)},
				}
				data, err := json.Marshal(m)
				if err != nil {
					return err
				}
				if err := send(ctx, client, http.MethodPut, fmt.Sprintf("%s/manifests/t%d", base, i), m.MediaType, data); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(s.put.Load()-from) / time.Since(begin).Seconds(), err
}

// send makes one request; a POST that is only taken note of is followed by the PUT that ends it.
func send(ctx context.Context, client *http.Client, method, url, mediaType string, data []byte) error {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", mediaType)
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusAccepted && method == http.MethodPost:
		at, err := resp.Location()
		if err != nil {
			return err
		}
		q := at.Query()
		q.Set("digest", digest.FromBytes(data).String())
		at.RawQuery = q.Encode()
		return send(ctx, client, http.MethodPut, at.String(), mediaType, data)
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	return nil
}
