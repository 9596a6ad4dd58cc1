package testenv

import "sync"

// Journal is a journal of images in memory, where a test has no store of an agent. The zero value is empty.
type Journal struct {
	mu     sync.Mutex
	images map[string]string
	notes  []string
}

func (j *Journal) note(image, what string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.images == nil {
		j.images = map[string]string{}
	}
	j.images[image] = what
	j.notes = append(j.notes, what)
	return nil
}

// Unpacking notes that an image is about to be unpacked.
func (j *Journal) Unpacking(image string) error { return j.note(image, "unpacking") }

// Durable notes that an image is on the disk.
func (j *Journal) Durable(image string) error { return j.note(image, "durable") }

// Forget notes that an image is gone.
func (j *Journal) Forget(image string) error { return j.note(image, "") }

// IsDurable reports whether the last note about an image says that it is on the disk.
func (j *Journal) IsDurable(image string) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.images[image] == "durable", nil
}

// Notes returns all notes in their order, each without its image.
func (j *Journal) Notes() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.notes
}
