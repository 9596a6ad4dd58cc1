package status

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/fleet/store"
)

const (
	tokenCheck = time.Second // between questions whether tokens have changed
	tokenStale = 3 * tokenCheck
	maxTokens  = 1 << 17 // kept at once; all are forgotten beyond it
)

// TokenCache identifies clients by bearer tokens, and keeps those in memory that polls come with: a poll that finds nothing new
// asks no database. A revoked token is good for polls until the cache has noticed, a second later; reports ask the database. Use
// [NewTokenCache], and run it; while it does not run nothing is kept.
type TokenCache struct {
	tokens  store.Tokens
	now     func() time.Time
	reports Identify
	polls   Identify

	mu      sync.Mutex
	known   map[string]store.Token
	changes int64
	checked time.Time
}

// NewTokenCache makes a cache of tokens.
func NewTokenCache(tokens store.Tokens, now func() time.Time) *TokenCache {
	c := &TokenCache{tokens: tokens, now: now, reports: BearerTokens(tokens), known: map[string]store.Token{}}
	c.polls = BearerTokens(cached{tokens, c})
	return c
}

// Identify is an [Identify].
func (c *TokenCache) Identify(r *http.Request) (Client, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return c.polls(r)
	}
	return c.reports(r)
}

// Run notices changes of tokens, also by other processes, until ctx ends.
func (c *TokenCache) Run(ctx context.Context) error {
	t := time.NewTicker(tokenCheck)
	defer t.Stop()
	for {
		c.check(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (c *TokenCache) check(ctx context.Context) {
	now := c.now()
	ctx, cancel := context.WithTimeout(ctx, tokenStale)
	defer cancel()
	n, err := c.tokens.TokenChanges(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || n != c.changes {
		clear(c.known)
	}
	if c.changes, c.checked = n, now; err != nil {
		c.checked = time.Time{}
	}
}

// cached finds tokens in memory first.
type cached struct {
	store.Tokens
	*TokenCache
}

func (c cached) Token(ctx context.Context, id string) (store.Token, error) {
	now := c.now()
	c.mu.Lock()
	t, ok := c.known[id]
	changes, fresh := c.changes, now.Sub(c.checked) < tokenStale
	c.mu.Unlock()
	if ok && fresh {
		return t, nil
	}
	t, err := c.tokens.Token(ctx, id)
	if err != nil || !fresh {
		return t, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxTokens {
		clear(c.known)
	}
	if c.changes == changes { // else it may have been revoked since
		c.known[id] = t
	}
	return t, nil
}
