package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Bounds of [Get].
const (
	getLimit  = 30 * time.Second
	maxAnswer = 1 << 20
)

// Get returns what a server answers, on a connection of its own. A status other than 200, and no answer within 30 seconds, are errors.
func Get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, getLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s: %.300s", url, resp.Status, body)
	}
	return body, err
}
