package store

import "bytes"

var keyRuntime = []byte("runtime") // in the bucket "meta"

// Runtime returns what the container runtime offered, as it was saved last; nil: nothing was.
func (s *Store) Runtime() (offered []byte, err error) {
	err = s.View(func(t *Tx) error {
		offered = bytes.Clone(t.tx.Bucket(bucketMeta).Get(keyRuntime))
		return nil
	})
	return offered, err
}

// SaveRuntime replaces what the container runtime offered.
func (s *Store) SaveRuntime(offered []byte) error {
	return s.Update(func(t *Tx) error { return t.tx.Bucket(bucketMeta).Put(keyRuntime, offered) })
}
