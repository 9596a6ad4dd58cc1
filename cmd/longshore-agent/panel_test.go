package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

func TestPanelPIN(t *testing.T) {
	var out, errs bytes.Buffer
	file := filepath.Join(t.TempDir(), "pins")
	if code := run(t.Context(), []string{"longshore-agent", "panel-pin", "ana"}, strings.NewReader("481592\n"), &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "ana:$2a$10$") {
		t.Fatalf("panel-pin = %d %s\n%s", code, &out, &errs)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	checkPanel(config.Panel{PINFile: file}, func(key string, err error) {
		if err != nil {
			t.Errorf("checkPanel: %s: %v", key, err)
		}
	})
	for name, c := range map[string]struct{ who, pin, want string }{
		"short": {"ana", "12345", "6 to 72 characters"}, "no PIN": {"ana", "", "6 to 72"}, "colon": {"a:b", "481592", "colon"},
	} {
		errs.Reset()
		if code := run(t.Context(), []string{"longshore-agent", "panel-pin", c.who}, strings.NewReader(c.pin), io.Discard, &errs); code != 2 || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%s: %d\n%s", name, code, &errs)
		}
	}
	// Every file that is wrong is told, with the line.
	de := filepath.Join(t.TempDir(), "de.yaml")
	if err := os.WriteFile(de, []byte("lang: de\nrejekt: nein\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := ""
	checkPanel(config.Panel{PINFile: de, Translations: de, CertFile: de, KeyFile: de}, func(key string, err error) { got += fmt.Sprintf("%s: %v\n", key, err) })
	for _, want := range []string{"panel.pinFile: " + de + ":1:1: ", "panel.translations: " + de + ":2:", "panel.certFile: load certificate"} {
		if !strings.Contains(got, want) {
			t.Errorf("checkPanel lacks %q:\n%s", want, got)
		}
	}
}

type shownDevice struct{}

func (shownDevice) Status() status.Status { return status.Status{Device: "press-07"} }

func (shownDevice) Changes(context.Context) ([]status.Change, error) { return nil, nil }

func (shownDevice) Decide(context.Context, agent.DecisionRequest) (status.Change, error) {
	return status.Change{}, nil
}

func (shownDevice) RollBack(context.Context, agent.RollbackRequest) (status.Hold, error) {
	return status.Hold{}, nil
}

func (shownDevice) Release(context.Context, string, string) (status.Hold, error) {
	return status.Hold{}, nil
}

// The page is served by TLS, in another language, and ends with the agent.
func TestServePanel(t *testing.T) {
	ca, cert, key := testenv.ServerPair(t, "127.0.0.1")
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", port)
	de, err := filepath.Abs("../../agent/panel/testdata/de.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		servePanel(ctx, config.Panel{Listen: at, CertFile: cert, KeyFile: key, AnonymousViewers: true, Translations: de}, shownDevice{}, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-done }()
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	testenv.Eventually(t, time.Minute, "the page", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at+"/", nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		page, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if err == nil && (!strings.Contains(string(page), "Keine Änderung wartet.") || !strings.Contains(string(page), `lang="de"`)) {
			t.Errorf("the page:\n%s", page)
		}
		return err
	})
}
