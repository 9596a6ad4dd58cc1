package testenv

import "go.uber.org/goleak"

// LeakOptions are for goleak.VerifyTestMain in packages whose tests use testenv: goroutines that a server of others
// leaves behind and offers no way to end.
func LeakOptions() []goleak.Option {
	return []goleak.Option{
		// distribution starts one for each registry and never closes it.
		goleak.IgnoreAnyFunction("github.com/docker/go-events.(*Broadcaster).run"),
	}
}
