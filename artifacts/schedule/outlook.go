package schedule

import "time"

// lookAgain is how long an Outlook keeps an answer in which nothing opens or closes.
const lookAgain = time.Hour

// Outlook is Windows that remember when they open next, for who asks often: it may take long to find out, as for two lists that have no time in
// common. It is for one goroutine.
type Outlook struct {
	Windows

	asked, until, opens, closes time.Time
}

// Next is as [Windows.Next]. What opens in more than ten years may be told an hour late.
func (o *Outlook) Next(t time.Time) (opens, closes time.Time) {
	t = t.Round(0) // a clock that is set, or a machine that slept, does not show in monotonic readings
	if o.asked.IsZero() || t.Before(o.asked) || !t.Before(o.until) {
		o.asked, o.until = t, t.Add(lookAgain)
		o.opens, o.closes = o.Windows.Next(t)
		for _, at := range []time.Time{o.opens, o.closes} {
			if at.After(t) && at.Before(o.until) {
				o.until = at
			}
		}
	}
	if o.opens.Equal(o.asked) { // they have been open since
		return t, o.closes
	}
	return o.opens, o.closes
}
