package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"time"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/door"
	"penstock/registry/redis/script"
)

// renewAtOnce is how many requests one script renews: about 2 ms of Redis's time.
const renewAtOnce = 64

// Open creates the record and counts it, or refuses and leaves no count behind; it
// also lists the lane. Where no agent has subscribed to the lane yet it waits for the
// first one, at most Config.ConfirmWait. Repeated for an id it knows it only says OK.
func (r *Registry) Open(ctx context.Context, q registry.Request, d registry.Drain) (registry.Admission, error) {
	if q.ID == "" {
		return registry.Admission{}, errors.New("registry/redis: open without an id")
	}
	id, key, err := script.Lane(q.Lane)
	if err != nil {
		return registry.Admission{}, err
	}
	confirmed, forget := r.await(id)
	defer forget()
	bounds := r.bounds(q.Lane)
	args := append(make([]any, 0, 21+7*len(q.Limits)), q.ID, id, q.Lane.Tier, r.cfg.Rank(q.Lane.Tier), q.Lane.Model, q.Reply,
		r.stamp(q.Deadline), max(q.Tokens, 1), max(q.Bytes, 0)+script.RecordBytes, q.Limit.Milliseconds(),
		strconv.FormatUint(q.Fingerprint, 10), d.Engines, rate(d.Rate), spread(q.ID), key, r.cfg.Live(q.Reply),
		bounds.Requests, bounds.Bytes, bounds.Width, q.Patience.Milliseconds(), bit(q.Slept))
	answer, err := r.run(ctx, "open", 0, script.Limits(args, q.Limits)...)
	row, err := script.Read(answer, err, 7)
	if err != nil {
		return registry.Admission{}, err
	}
	if v := row.Verdict(len(q.Limits)); v.Refused {
		return door.Limited(&q, &v), row.Err()
	}
	a := registry.Admission{
		Reason: reasonOf(row.Text(0)), Wait: row.Millis(1), Ahead: row.Int(2), RetryAfter: row.Millis(3),
		Kept: row.Int(4) == 1, Shard: row.Int(5), Quota: row.Verdict(len(q.Limits)),
	}
	if a.Reason != reason.OK {
		return a, row.Err()
	}
	if len(q.Limits) > 0 && row.Len() > 7 {
		r.reserved(max(q.Tokens, 1))
	}
	if row.Int(6) == 1 {
		r.confirmed(id)
	} else if confirmed != nil {
		wait, stop := context.WithTimeout(ctx, r.cfg.ConfirmWait)
		defer stop()
		select {
		case <-confirmed:
		case <-wait.Done(): // its message waits in the broker for whoever subscribes
		}
	}
	return a, row.Err()
}

// rate is perSecond, or 0 where that says nothing.
func rate(perSecond float64) float64 {
	if perSecond > 0 && !math.IsInf(perSecond, 1) {
		return perSecond
	}
	return 0
}

// spread is what an id's Retry-After is multiplied by, 1 to 1.25.
func spread(id string) float64 {
	return 1 + 0.25*float64(crc32.ChecksumIEEE([]byte(id)))/math.MaxUint32
}

// Claim checks in the order of the protocol. Where it must end a request with an event
// it takes two round trips: only this side can encode one, for the attempt that ran.
func (r *Registry) Claim(ctx context.Context, s registry.Start) (registry.Claim, error) {
	if s.ID == "" || s.Attempt == "" {
		return registry.Claim{}, errors.New("registry/redis: claim without an id or attempt")
	}
	id, key, err := script.Lane(s.Lane)
	if err != nil {
		return registry.Claim{}, err
	}
	encoded, event := "", []byte(nil)
	for range 3 { // another call may come between
		answer, err := r.run(ctx, "claim", len(event), s.ID, s.Attempt, s.Owner, id, s.Lane.Tier, s.Lane.Model,
			r.stamp(s.Deadline), s.Reply, max(s.Tokens, 1), r.cfg.Live(s.Reply), rate(r.cfg.Pace(s.Lane)), encoded, event, key)
		row, err := script.Read(answer, err, 3)
		if err != nil {
			return registry.Claim{}, err
		}
		if row.Text(0) == "encode" {
			encoded = row.Text(2) + " " + row.Text(1)
			event = r.cfg.Terminal(s.ID, row.Text(1), reasonOf(row.Text(2)))
			continue
		}
		r.settled(row, 4)
		c := registry.Claim{Action: actions[row.Text(0)], After: row.Millis(1), Reason: reasonOf(row.Text(2)), Tries: row.Int(3)}
		if c.Action == registry.Run {
			r.remember(s.Owner, registry.Ref{ID: s.ID, Attempt: s.Attempt, Reply: s.Reply})
		}
		return c, row.Err()
	}
	return registry.Claim{}, fmt.Errorf("%w: claim: the record keeps changing", registry.ErrAway)
}

var actions = map[string]registry.Action{"run": registry.Run, "ack": registry.Ack, "suspend": registry.Suspend}

// Renew prolongs what owner runs and returns what it has lost. A record that is not
// there is written again, outside any lane's count. On an error what came before it
// is renewed.
func (r *Registry) Renew(ctx context.Context, owner string, running []registry.Ref) (lost []registry.Ref, err error) {
	r.remember(owner, running...)
	for len(running) > 0 {
		part := running[:min(len(running), renewAtOnce)]
		running = running[len(part):]
		args := make([]any, 0, 1+5*len(part))
		args = append(args, owner)
		for _, ref := range part {
			args = append(args, ref.ID, ref.Attempt, ref.Reply, r.cfg.Live(ref.Reply), bit(ref.Streaming))
		}
		answer, err := r.run(ctx, "renew", 0, args...)
		row, err := script.Read(answer, err, len(part))
		if err != nil {
			return lost, err
		}
		for i, ref := range part {
			if row.Int(i) == 1 {
				r.forget(ref.ID, ref.Attempt)
				lost = append(lost, ref)
			}
		}
		if row.Err() != nil {
			return lost, row.Err()
		}
	}
	return lost, nil
}

// mine is what an attempt that runs in this process was claimed with.
type mine struct {
	owner, reply string
	seen         time.Time // last claimed or renewed
}

// remember keeps what First and Finish write a lost record again from, so that a
// terminal event is heard although Redis was emptied since the last renewal. What an
// owner has not renewed for a minute is dropped.
func (r *Registry) remember(owner string, refs ...registry.Ref) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range refs {
		r.running[[2]string{ref.ID, ref.Attempt}] = mine{owner, ref.Reply, now}
	}
	if now.Sub(r.cleared) < time.Minute {
		return
	}
	r.cleared = now
	for key, m := range r.running {
		if now.Sub(m.seen) > time.Minute {
			delete(r.running, key)
		}
	}
}

func (r *Registry) recall(id, attempt string) (owner, reply string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.running[[2]string{id, attempt}]
	return m.owner, m.reply
}

func (r *Registry) forget(id, attempt string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, [2]string{id, attempt})
}

// First moves the attempt from running to streaming and appends its first event;
// repeated it only says true. On an error nothing has changed, or all of it.
func (r *Registry) First(ctx context.Context, id, attempt string, event []byte) (bool, error) {
	owner, reply := r.recall(id, attempt)
	answer, err := r.run(ctx, "first", len(event), id, attempt, event, owner, reply, r.cfg.Live(reply))
	return answer == int64(1), err
}

// Finish ends the record with its terminal event, once. Where a dead attempt had
// relayed bytes it takes two round trips. On an error nothing has changed, or all of it.
func (r *Registry) Finish(ctx context.Context, id, attempt string, event []byte, used quota.Usage) (bool, error) {
	of, lost := "", []byte(nil)
	owner, reply := r.recall(id, attempt)
	for range 3 {
		answer, err := r.run(ctx, "finish", len(event)+len(lost), id, attempt, event, of, lost, owner, reply, r.cfg.Live(reply), used.Tokens())
		if err != nil {
			return false, err
		}
		dead, is := answer.(string)
		if !is {
			row, err := script.Read(answer, nil, 3)
			if err != nil {
				return false, err
			}
			r.forget(id, attempt)
			r.settled(row, 1)
			return row.Int(0) == 1, row.Err()
		}
		of, lost = dead, r.cfg.Terminal(id, dead[1:], reason.UpstreamLost)
	}
	return false, fmt.Errorf("%w: finish: the record keeps changing", registry.ErrAway)
}

// Release gives a running attempt back to its lane, or ends it where it was
// cancelled meanwhile. Any other attempt or state is left alone.
func (r *Registry) Release(ctx context.Context, id, attempt string, blameless bool) error {
	answer, err := r.run(ctx, "release", 0, id, attempt, bit(blameless), r.cfg.Terminal(id, attempt, reason.Aborted))
	if err != nil {
		return err
	}
	r.forget(id, attempt)
	if row, err := script.Read(answer, nil, 2); err == nil { // it was ended
		r.settled(row, 0)
	}
	return nil
}

// Cancel ends a request that nobody runs, without an event: the caller is the one
// who waits. A running one is marked. Both are published to every Config.Cancel of
// the fleet, each time.
func (r *Registry) Cancel(ctx context.Context, id string, onlyIfQueued bool) (registry.Canceled, error) {
	answer, err := r.run(ctx, "cancel", 0, id, bit(onlyIfQueued))
	row, err := script.Read(answer, err, 5)
	if err != nil {
		return registry.Canceled{}, err
	}
	r.settled(row, 3)
	return registry.Canceled{State: registry.State(row.Int(0)), Owner: row.Text(1), Attempt: row.Text(2)}, row.Err()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

var reasons = func() map[string]reason.Reason {
	names := map[string]reason.Reason{}
	for _, why := range reason.All() {
		names[why.String()] = why
	}
	return names
}()

func reasonOf(name string) reason.Reason { return reasons[name] }
