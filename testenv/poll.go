package testenv

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

// Poll intervals grow from short, because most real programs answer within milliseconds, to long, to leave them the CPU.
const (
	pollFirst = 2 * time.Millisecond
	pollLast  = 100 * time.Millisecond
)

// poll calls ask until it returns nil or ctx ends; the error then has both.
func poll(ctx context.Context, ask func() error) error {
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		err := ask()
		if err == nil {
			return nil
		}
		if end := delay.For(ctx, pause); end != nil {
			return errors.Join(end, err)
		}
	}
}

// Await asks again and again until ask returns nil, at most for limit. It is for real programs only; what can run in a
// testing/synctest bubble should.
func Await(ctx context.Context, limit time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	return poll(ctx, ask)
}

// Eventually is [Await] for tests: what names the thing waited for.
func Eventually(t testing.TB, limit time.Duration, what string, ask func() error) {
	t.Helper()
	if err := Await(t.Context(), limit, ask); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// SideBySide lets n parallel tests of this process run at a time, unless the command line sets their number: for tests that mostly
// wait. Call it in TestMain.
func SideBySide(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(n)) // a number is a valid value
	}
}
