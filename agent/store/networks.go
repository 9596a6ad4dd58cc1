package store

import "bytes"

var keyNetworks = []byte("networks") // in the bucket "meta"

// Networks returns the state of the containers' networks that was saved last; nil: none was.
func (s *Store) Networks() (state []byte, err error) {
	err = s.View(func(t *Tx) error {
		state = bytes.Clone(t.tx.Bucket(bucketMeta).Get(keyNetworks))
		return nil
	})
	return state, err
}

// SaveNetworks replaces the state of the containers' networks.
func (s *Store) SaveNetworks(state []byte) error {
	return s.Update(func(t *Tx) error { return t.tx.Bucket(bucketMeta).Put(keyNetworks, state) })
}
