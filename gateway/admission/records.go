package admission

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock/gateway/headers"
	"penstock/quota"
	"penstock/registry"
)

const (
	storePatience = time.Second // how long a call to the records is repeated that gets no answer
	storePause    = 50 * time.Millisecond
	storeWait     = 5 * time.Second // longest one call to the records or the lanes may take
	outageGap     = 5 * time.Second // after how long without a failure an outage counts as over
)

// open opens the request's record. Where a limit has room soon it sleeps until then, in
// all as long as quota.MaxWait and the client's patience allow.
func (d *Door) open(ctx context.Context, q registry.Request, drain registry.Drain, l *headers.Limits) (a registry.Admission, err error) {
	now := time.Now()
	until := now.Add(min(smooth(l), q.Deadline.Sub(now)))
	for {
		q.Patience = max(time.Until(until), 0)
		call, cancel := context.WithTimeout(ctx, storeWait)
		err = d.persist(call, func() (err error) {
			a, err = d.deps.Records.Open(call, q, drain)
			return err
		})
		cancel()
		if err != nil {
			return a, err
		}
		if d.outage.over(); a.Sleep <= 0 {
			return a, nil
		}
		pause := a.Sleep
		if q.Slept { // a debt came between: others wake with it
			pause = max(pause, storePause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return a, ctx.Err()
		}
		q.Slept = true
	}
}

// persist repeats a call while the store does not answer: it may only be slow for a
// moment, and knows an id that it has opened. One that stays away is not waited for.
func (d *Door) persist(ctx context.Context, call func() error) error {
	for last := time.Now().Add(storePatience); ; {
		err := call()
		if !errors.Is(err, registry.ErrAway) || d.outage.lasts() || time.Now().After(last) {
			return err
		}
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
			return err
		}
	}
}

// smooth is how long a request may sleep until its limits have room.
func smooth(l *headers.Limits) time.Duration {
	most := min(quota.MaxWait, l.Deadline)
	if l.Patience > 0 {
		most = min(most, l.Patience)
	}
	return most
}

// outage is since when the record store does not answer.
type outage struct {
	mu          sync.Mutex
	since, last time.Time
}

// lasts notes a call that got no answer, and reports whether that has gone on for
// storePatience.
func (o *outage) lasts() bool {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.last) > outageGap {
		o.since = now
	}
	o.last = now
	return now.Sub(o.since) >= storePatience
}

// over notes that a record was opened or refused.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Time{}
}
