package store

import "bytes"

// Keys in the bucket "meta" of records that other packages encode.
var (
	keyNetworks = []byte("networks")
	keyRuntime  = []byte("runtime")
)

// Networks returns the state of the containers' networks that was saved last; nil: none was.
func (s *Store) Networks() ([]byte, error) { return s.encoded(keyNetworks) }

// SaveNetworks replaces the state of the containers' networks.
func (s *Store) SaveNetworks(state []byte) error { return s.saveEncoded(keyNetworks, state) }

// Runtime returns what the container runtime offered, as it was saved last; nil: nothing was.
func (s *Store) Runtime() ([]byte, error) { return s.encoded(keyRuntime) }

// SaveRuntime replaces what the container runtime offered.
func (s *Store) SaveRuntime(offered []byte) error { return s.saveEncoded(keyRuntime, offered) }

func (s *Store) encoded(key []byte) (data []byte, err error) {
	err = s.View(func(t *Tx) error {
		data = bytes.Clone(t.tx.Bucket(bucketMeta).Get(key))
		return nil
	})
	return data, err
}

func (s *Store) saveEncoded(key, data []byte) error {
	return s.Update(func(t *Tx) error { return t.tx.Bucket(bucketMeta).Put(key, data) })
}
