package admission

import (
	"fmt"
	"sync"
	"time"

	"penstock/gateway/refuse"
	"penstock/lane"
	"penstock/reason"
)

const (
	sendBurst = time.Second // of its rate a lane that was quiet may send at once, at least one request
	mostPaced = 10_000      // lanes remembered, about 2 MB; with more that send, those looked for last are not held
)

// sends holds lanes to the rate at which this gateway may send their requests.
type sends struct {
	mu   sync.Mutex
	next map[lane.Key]time.Time // guarded by mu; when a lane's next request is due at its rate; those past may be missing
}

// wait takes a send of a lane, or says how long until it may be taken.
func (s *sends) wait(k lane.Key, perSecond float64, now time.Time) time.Duration {
	interval := time.Duration(float64(time.Second) / perSecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	next, known := s.next[k]
	if next.Before(now) {
		next = now
	}
	if wait := next.Sub(now) - max(sendBurst-interval, 0); wait > 0 {
		return wait
	}
	if !known && len(s.next) >= mostPaced {
		for k, at := range s.next {
			if at.Before(now) {
				delete(s.next, k)
			}
		}
		if len(s.next) >= mostPaced {
			return 0
		}
	}
	s.next[k] = next.Add(interval)
	return 0
}

// paced refuses a request whose lane sends faster than it may.
func (d *Door) paced(b *Bid, now time.Time) *refuse.Refusal {
	if b.SendsPerSecond == 0 {
		return nil
	}
	wait := d.sends.wait(b.Lane, b.SendsPerSecond, now)
	if wait == 0 {
		return nil
	}
	return &refuse.Refusal{
		Reason: reason.RateLimited, Model: b.Asked, Wait: wait, Retry: refuse.WholeSeconds(wait),
		Detail: fmt.Sprintf("Your limit of %g requests per second for model '%s' at this gateway is reached.", b.SendsPerSecond, b.Asked),
	}
}
