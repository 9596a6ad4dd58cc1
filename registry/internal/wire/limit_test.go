package wire_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// So many wait for their answers and no more; who gives up while waiting for a turn leaves it to the next.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		answer, waiting := make(chan struct{}), 0
		var mu sync.Mutex
		trips := wire.WithLimit(roundTripper(func(*http.Request) (*http.Response, error) {
			mu.Lock()
			waiting++
			mu.Unlock()
			<-answer
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}), most)
		ctx, giveUp := context.WithCancel(t.Context())
		results := make(chan error, 10)
		for i := range cap(results) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://registry.example/v2/", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 1 {
				r = r.WithContext(ctx)
			}
			go func() {
				resp, err := trips.RoundTrip(r)
				if err == nil {
					resp.Body.Close()
				}
				results <- err
			}()
		}
		synctest.Wait()
		if waiting != most {
			t.Fatalf("%d wait for an answer, want %d", waiting, most)
		}
		giveUp()
		synctest.Wait()
		close(answer)
		given := 0
		for range cap(results) {
			if err := <-results; errors.Is(err, context.Canceled) {
				given++
			} else if err != nil {
				t.Error(err)
			}
		}
		if given == 0 || waiting != cap(results)-given {
			t.Errorf("%d were sent and %d given up, want all of %d", waiting, given, cap(results))
		}
	})
}
