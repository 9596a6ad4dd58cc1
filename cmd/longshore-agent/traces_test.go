package main

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/store"
)

// Without a collector nothing is made; the environment counts more than agent.yaml; and what is wrong is told without a secret.
func TestTracer(t *testing.T) {
	st, err := store.Open(store.Options{Path: filepath.Join(t.TempDir(), "agent.db"), Device: "press-07"})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	inFile := config.Traces{Endpoint: "http://in.file:4318"}
	for name, tc := range map[string]struct {
		traces config.Traces
		env    map[string]string
		log    string // "": nothing is logged, and nothing made
		made   bool
	}{
		"off":          {},
		"agent.yaml":   {traces: inFile, log: "collector=http://in.file:4318", made: true},
		"environment":  {traces: inFile, env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:hunter2@in.env:4318"}, log: "collector=http://in.env:4318", made: true},
		"switched off": {traces: inFile, env: map[string]string{"OTEL_SDK_DISABLED": "true"}},
		"wrong":        {traces: inFile, env: map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"}, log: "OTEL_EXPORTER_OTLP_HEADERS"},
		"no authority": {traces: config.Traces{Endpoint: "https://in.file:4318", CAFile: "/nowhere/ca.pem"}, log: "/nowhere/ca.pem"},
		"no pair":      {traces: inFile, env: map[string]string{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/nowhere/c", "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/nowhere/k"}, log: "/nowhere/c"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			got := tracer(&config.Config{Device: "press-07", Traces: tc.traces}, st, func(k string) string { return tc.env[k] }, slog.New(slog.NewTextHandler(&log, nil)))
			if (got != nil) != tc.made || !strings.Contains(log.String(), tc.log) || (tc.log == "") != (log.Len() == 0) || strings.Contains(log.String(), "hunter2") {
				t.Errorf("made %v, the log\n%s", got != nil, log.String())
			}
		})
	}
}
