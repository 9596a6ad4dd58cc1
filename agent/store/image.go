package store

import "github.com/longshore-dev/longshore/agent/workload"

// Images returns what the configurations of pulled images say, by image name.
func (t *Tx) Images() (map[string]workload.ImageInfo, error) {
	out := map[string]workload.ImageInfo{}
	err := t.tx.Bucket(bucketImageInfo).ForEach(func(k, v []byte) error {
		var x workload.ImageInfo
		if err := decode("image "+string(k), v, &x); err != nil {
			return err
		}
		out[string(k)] = x
		return nil
	})
	return out, err
}

// SetImages remembers exactly these.
func (t *Tx) SetImages(all map[string]workload.ImageInfo) error {
	return exactly(t, bucketImageInfo, all)
}
