// Package locks provides locks by name.
package locks

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
)

// Table is locks by name. The zero value has none.
type Table struct {
	mu   sync.Mutex
	held map[string]*key
}

type key struct {
	token chan struct{} // one token: held
	users int
}

// Lock waits for a name and returns its unlock.
func (k *Table) Lock(ctx context.Context, name string) (func(), error) {
	k.mu.Lock()
	e := k.enter(name)
	k.mu.Unlock()
	select {
	case e.token <- struct{}{}:
		return func() { k.Unlock(name) }, nil
	case <-ctx.Done():
		k.leave(name)
		return nil, ctx.Err()
	}
}

// Try is Lock if the name is free; false: it is held or waited for.
func (k *Table) Try(name string) (func(), bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[name] != nil {
		return nil, false
	}
	e := k.enter(name)
	e.token <- struct{}{}
	return func() { k.Unlock(name) }, true
}

func (k *Table) enter(name string) *key {
	if k.held == nil {
		k.held = map[string]*key{}
	}
	e := cmp.Or(k.held[name], &key{token: make(chan struct{}, 1)})
	k.held[name] = e
	e.users++
	return e
}

// Unlock is for callers that cannot keep the function that Lock returned.
func (k *Table) Unlock(name string) {
	k.mu.Lock()
	e := k.held[name]
	k.mu.Unlock()
	<-e.token
	k.leave(name)
}

func (k *Table) leave(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.held[name]; e.users > 1 {
		e.users--
	} else {
		delete(k.held, name)
	}
}

// Names are those that are held or waited for.
func (k *Table) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.held))
}
