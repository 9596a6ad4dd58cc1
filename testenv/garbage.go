package testenv

import (
	"testing"

	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

// CollectGarbage is distribution's registry garbage-collect --delete-untagged, on the folder of [WithStorage].
func CollectGarbage(t testing.TB, dir string) {
	t.Helper()
	driver := filesystem.New(filesystem.DriverParameters{RootDirectory: dir, MaxThreads: 25})
	all, err := storage.NewRegistry(t.Context(), driver)
	if err == nil {
		err = storage.MarkAndSweep(t.Context(), driver, all, storage.GCOpts{RemoveUntagged: true, Quiet: true})
	}
	if err != nil {
		t.Fatal(err)
	}
}
