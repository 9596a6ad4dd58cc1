package files

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Kept is what files say, read again when one of them changes. While they cannot be used, what they said before stays, and the log
// tells each reason once.
type Kept[T any] struct {
	files []string
	load  func() (T, error)
	log   *slog.Logger

	mu    sync.Mutex
	value T
	good  bool   // value is one
	as    string // stamp of the files that value is of
	told  string // the reason that the log has told
}

// Keep makes a Kept of files, which load reads. It reads nothing yet.
func Keep[T any](load func() (T, error), log *slog.Logger, files ...string) *Kept[T] {
	return &Kept[T]{files: files, load: load, log: log}
}

// Get looks at the files' sizes and times. Until they could be used for the first time, it fails with what is wrong with them.
func (k *Kept[T]) Get() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := stamp(k.files)
	if k.good && now == k.as {
		return k.value, nil
	}
	value, err := k.load()
	switch {
	case err == nil:
		k.value, k.good, k.as, k.told = value, true, now, ""
	case !k.good:
		return k.value, err
	case err.Error() != k.told:
		k.told = err.Error()
		k.log.Error("new files cannot be used: those before stay in use", "error", err, "hint", fault.Hint(err))
	}
	return k.value, nil
}

// stamp changes when a file is written or replaced.
func stamp(files []string) (out string) {
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			out += "-;"
			continue
		}
		var inode uint64
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = s.Ino
		}
		out += fmt.Sprintf("%d %d %d;", inode, info.Size(), info.ModTime().UnixNano())
	}
	return out
}
