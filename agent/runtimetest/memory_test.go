package runtimetest_test

import (
	"testing"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	runtimetest.Run(t, func(*testing.T) runtimetest.Env {
		return runtimetest.Env{
			Runtime: runtimetest.NewMemory(),
			Image: func(name string) workload.Image {
				return workload.Image{Repository: "r.example/" + name, Digest: digest.FromString(name)}
			},
		}
	})
}
