package store

import "github.com/longshore-dev/longshore/agent/workload"

// Images returns what the configurations of pulled images say, by image name.
func (t *Tx) Images() (map[string]workload.ImageInfo, error) {
	out := map[string]workload.ImageInfo{}
	err := each(t.tx.Bucket(bucketImageInfo), "image ", func(name string, x workload.ImageInfo) { out[name] = x })
	return out, err
}

// SetImages remembers exactly these.
func (t *Tx) SetImages(all map[string]workload.ImageInfo) error {
	return exactly(t, bucketImageInfo, all)
}
