package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Short is how many hexadecimal digits of a hash names carry.
const Short = 8

// ProjectName is the name of the project that a component of a deployment becomes: readable, unique, 32 characters at most.
func ProjectName(deployment, component string) string {
	return clip(component, 32-1-Short) + "-" + sum(deployment + "\x00" + component)[:Short]
}

// Hash is the identity of a service's configuration, 64 hexadecimal digits: equal hashes mean equal containers.
// What only orders, counts or describes (DependsOn, Replicas, Update, Rollback, image tag and size) does not count.
func (s Service) Hash() string {
	s.DependsOn, s.Image.Tag, s.Image.Size = nil, "", 0
	s.Replicas, s.Update, s.Rollback = 0, Update{}, Update{}
	s.Mounts = slices.Clone(s.Mounts)
	for n, m := range s.Mounts {
		if m.Image != nil {
			i := *m.Image
			i.Tag, i.Size = "", 0
			s.Mounts[n].Image = &i
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("workload: service %q cannot be encoded: %v", s.Name, err)) // only plain values in Service
	}
	return sum(string(b))
}

// ContainerID names one replica of one revision of a service: at most 76 characters, as containerd allows.
func ContainerID(project, service string, replica int, hash string) string {
	return fmt.Sprintf("%s-%s-%d-%s", project, clip(service, 24), replica, hash[:Short])
}

// Containers are the containers that the project needs, in order of services and replicas.
func (p *Project) Containers() []Container {
	out := make([]Container, 0, len(p.Services))
	for _, s := range p.Services {
		h := s.Hash()
		for n := range s.Count() {
			out = append(out, Container{ID: ContainerID(p.Name, s.Name, n+1, h), Service: s, Replica: n + 1, Hash: h})
		}
	}
	return out
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// clip makes a name safe for containerd, interfaces and files: lower case, [a-z0-9-], no dash at an end and no two in a
// row, which containerd refuses. Different names may clip to the same; callers add a hash where they must differ.
func clip(s string, n int) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case b.Len() >= n:
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case r >= 'A' && r <= 'Z':
			b.WriteRune(r + 'a' - 'A')
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if s = strings.TrimRight(b.String(), "-"); s == "" {
		return "x"
	}
	return s
}
