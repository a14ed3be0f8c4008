package scraper

import "time"

const (
	// share is how much of the engine's time may go into serving us: at most one
	// part in 20. Its front end renders the page between streaming tokens.
	share = 20

	// memory is the time constant of the mean cost. It is short, so that one
	// scrape that took the whole timeout slows us for about three seconds only.
	memory = time.Second
)

// pace spreads scrapes so that their cost stays below the share.
type pace struct {
	interval time.Duration // the shortest gap
	cost     float64       // seconds per scrape, weighted by time
}

// spent notes that a tick cost d, the tick before being since ago, and returns the
// gap to keep to the next one: at least interval, at most MaxInterval.
func (p *pace) spent(d, since time.Duration) time.Duration {
	since = max(since, p.interval)
	p.cost += (d.Seconds() - p.cost) * since.Seconds() / (since + memory).Seconds()
	return min(max(time.Duration(share*p.cost*float64(time.Second)), p.interval), MaxInterval)
}

// nextTick is the first point of the grid (start + n x interval) that is not
// before due and is after now: what passed is skipped.
func nextTick(start, due, now time.Time, interval time.Duration) time.Time {
	if due.Before(now) {
		due = now
	}
	n := (due.Sub(start) + interval - 1) / interval
	tick := start.Add(n * interval)
	if !tick.After(now) {
		tick = tick.Add(interval)
	}
	return tick
}
