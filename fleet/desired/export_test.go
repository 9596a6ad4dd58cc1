package desired

import "context"

// Collect removes what nobody is served now, without waiting for its hour.
func (v *View) Collect(ctx context.Context) bool { return v.collect(ctx) }
