package images

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestImageHealth(t *testing.T) {
	base := workload.Health{Interval: 30 * time.Second, Timeout: 30 * time.Second, Retries: 3}
	with := func(change func(*workload.Health)) *workload.Health {
		h := base
		change(&h)
		return &h
	}
	for _, tc := range []struct {
		name, config string
		want         *workload.Health
	}{
		{"no healthcheck", `{"config": {}}`, nil},
		{"none", `{"config": {"Healthcheck": {"Test": ["NONE"]}}}`, nil},
		{"empty", `{"config": {"Healthcheck": {"Test": []}}}`, nil},
		{"unknown kind", `{"config": {"Healthcheck": {"Test": ["PING", "x"]}}}`, nil},
		{"command without words", `{"config": {"Healthcheck": {"Test": ["CMD"]}}}`, nil},
		{"shell with two texts", `{"config": {"Healthcheck": {"Test": ["CMD-SHELL", "a", "b"]}}}`, nil},
		{"command", `{"config": {"Healthcheck": {"Test": ["CMD", "/probe", "-q"]}}}`, with(func(h *workload.Health) { h.Probe.Exec = []string{"/probe", "-q"} })},
		{"shell", `{"config": {"Healthcheck": {"Test": ["CMD-SHELL", "a || b"]}}}`, with(func(h *workload.Health) { h.Probe.Exec = []string{"/bin/sh", "-c", "a || b"} })},
		{"another shell", `{"config": {"Shell": ["/bin/ash", "-ec"], "Healthcheck": {"Test": ["CMD-SHELL", "a"]}}}`, with(func(h *workload.Health) { h.Probe.Exec = []string{"/bin/ash", "-ec", "a"} })},
		{
			"times", `{"config": {"Healthcheck": {"Test": ["CMD", "a"], "Interval": 5000000000, "Timeout": 2000000000, "StartPeriod": 1000000000, "StartInterval": 500000000, "Retries": 9}}}`,
			&workload.Health{
				Probe: workload.Probe{Exec: []string{"a"}}, Interval: 5 * time.Second, Timeout: 2 * time.Second, Retries: 9,
				StartPeriod: time.Second, StartInterval: time.Second / 2,
			},
		},
		{"times below zero", `{"config": {"Healthcheck": {"Test": ["CMD", "a"], "Interval": -1, "Timeout": -1, "StartPeriod": -1, "StartInterval": -1, "Retries": -1}}}`, with(func(h *workload.Health) { h.Probe.Exec = []string{"a"} })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := imageHealth([]byte(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("health (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := imageHealth([]byte(`{"config": {"Healthcheck": {"Test": "CMD"}}}`)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a test that is no list: %v, want invalid", err)
	}
}

func FuzzImageHealth(f *testing.F) {
	f.Add([]byte(`{"config": {"Shell": ["/bin/ash"], "Healthcheck": {"Test": ["CMD-SHELL", "a"], "Interval": 1}}}`))
	f.Add([]byte(`{"config": {"Healthcheck": {"Test": ["NONE"]}}}`))
	f.Add([]byte(`{"config": {"Healthcheck": {"Test": ["CMD", ""], "Retries": -5}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := imageHealth(data)
		if err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("an error of no kind: %v", err)
		}
		if h != nil && (len(h.Probe.Exec) == 0 || h.Interval <= 0 || h.Timeout <= 0 || h.Retries <= 0 || h.StartPeriod < 0 || h.StartInterval < 0) {
			t.Errorf("a health that cannot be: %+v", h)
		}
	})
}
