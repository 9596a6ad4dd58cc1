package budget

// Used are the bytes of bodies so far.
func (b *Budget) Used() (received, sent int64) { return b.received.used.Load(), b.sent.used.Load() }
