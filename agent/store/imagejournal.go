package store

import (
	"bytes"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Entries of the image journal.
const (
	unpacking = "unpacking"
	durable   = "durable"
)

// Unpacking notes, durably, that layers of the image are about to be written: until Durable they are not to be trusted.
func (s *Store) Unpacking(image string) error { return s.note(image, unpacking) }

// Durable notes that all of the image's layers are on the disk.
func (s *Store) Durable(image string) error { return s.note(image, durable) }

// Forget removes the image's entry, and those that begin with its name and a space. Gone is no error.
func (s *Store) Forget(image string) error {
	return s.Update(func(t *Tx) error {
		return t.retain(bucketImages, func(key []byte) bool { return string(key) != image && !bytes.HasPrefix(key, []byte(image+" ")) })
	})
}

// IsDurable reports whether the image's layers may be trusted. No entry means no.
func (s *Store) IsDurable(image string) (bool, error) {
	ok := false
	err := s.View(func(t *Tx) error {
		switch v := string(t.tx.Bucket(bucketImages).Get([]byte(image))); v {
		case durable:
			ok = true
		case unpacking, "":
		default:
			return fmt.Errorf("read record image %q: %w", image, fault.ErrInvalid)
		}
		return nil
	})
	return ok, err
}

func (s *Store) note(image, entry string) error {
	if ok, err := s.IsDurable(image); err == nil && ok && entry == durable {
		return nil
	}
	return s.Update(func(t *Tx) error { return t.tx.Bucket(bucketImages).Put([]byte(image), []byte(entry)) })
}
