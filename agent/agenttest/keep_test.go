package agenttest

import (
	"encoding/json"
	"fmt"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/store"
)

// saved is a registry in a file, for an agent in a process of its own.
type saved struct {
	Tags    map[string]ocispec.Descriptor
	Content map[string][]byte
}

// Save writes all that the registry holds.
func (r *Registry) Save(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := json.Marshal(saved{r.tags, r.content})
	if err != nil {
		return fmt.Errorf("save registry: %w", err)
	}
	return os.WriteFile(path, b, 0o600)
}

// LoadRegistry reads what Save wrote.
func LoadRegistry(path string) (*Registry, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("load registry: %w", err)
	}
	return &Registry{tags: s.Tags, content: s.Content}, nil
}

// Load replaces what the fleet endpoint took: reports that an agent in another process delivered.
func (f *Fleet) Load(reports []store.Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = reports
}
