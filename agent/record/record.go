// Package record is the record store as an agent calls it: each call with its own time
// limit, repeated while the store is away for as long as the call is worth it, and the
// failures told once per interval.
package record

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/agent/state"
	"penstock/quota"
	"penstock/registry"
	"penstock/response"
)

const (
	// settleWithin bounds the repeats of one call.
	settleWithin = 30 * time.Second
	// claimWithin bounds those of a claim, and then of its release: a request that
	// waits for its start holds its place in the ledger meanwhile.
	claimWithin = time.Second
	// repeatFrom doubles up to repeatMost between two of them.
	repeatFrom, repeatMost = 50 * time.Millisecond, 2 * time.Second
	// awayEvery is how often a store that is away is logged.
	awayEvery = 10 * time.Second
)

// Store calls Records. It is safe for concurrent use.
type Store struct {
	Records registry.Records
	// Flush returns once everything appended to reply has arrived, so that the event
	// the store appends comes after it; nil where there is nothing to wait for.
	Flush   func(ctx context.Context, reply string) error
	Timeout time.Duration // of one call
	Log     *slog.Logger

	awayUntil atomic.Int64 // unix nanoseconds before which a store that is away is not logged again
	stumbled  atomic.Pointer[state.StoreFailure]
}

// Claim asks for the record. Given up, it is released: the store may have heard it.
func (s *Store) Claim(ctx context.Context, r registry.Start) (claim registry.Claim, err error) {
	err = s.repeat(ctx, claimWithin, "claim", func(ctx context.Context) error {
		claim, err = s.Records.Claim(ctx, r)
		return err
	})
	if err != nil { // else it is owned for a while
		s.release(context.WithoutCancel(ctx), claimWithin, r.ID, r.Attempt, true)
	}
	return claim, err
}

// First is Records.First, after what was appended to reply.
func (s *Store) First(ctx context.Context, id, attempt, reply string, event []byte) (owner bool, err error) {
	err = s.repeat(ctx, settleWithin, "first", func(ctx context.Context) error {
		if err = s.flush(ctx, reply); err == nil { // a heartbeat may be on its way still
			owner, err = s.Records.First(ctx, id, attempt, event)
		}
		return err
	})
	return owner, err
}

// Release is Records.Release. A store that stays away loses the claim by itself.
func (s *Store) Release(ctx context.Context, id, attempt string, blameless bool) {
	s.release(ctx, settleWithin, id, attempt, blameless)
}

func (s *Store) release(ctx context.Context, within time.Duration, id, attempt string, blameless bool) {
	_ = s.repeat(ctx, within, "release", func(ctx context.Context) error {
		return s.Records.Release(ctx, id, attempt, blameless)
	})
}

// Finish is Records.Finish, after what was appended to reply; a mailbox that is gone
// is a finish, for nobody is left to hear it. once: it is not repeated.
func (s *Store) Finish(ctx context.Context, id, attempt, reply string, event []byte, used quota.Usage, once bool) (done bool) {
	within := settleWithin
	if once {
		within = 0
	}
	err := s.repeat(ctx, within, "finish", func(ctx context.Context) (err error) {
		if err := s.flush(ctx, reply); err != nil && !errors.Is(err, response.ErrGone) {
			return err
		}
		done, err = s.Records.Finish(ctx, id, attempt, event, used)
		return err
	})
	return done || errors.Is(err, response.ErrGone)
}

// Renew is Records.Renew, once.
func (s *Store) Renew(ctx context.Context, owner string, running []registry.Ref) (lost []registry.Ref, err error) {
	err = s.Once(ctx, "renew", func(ctx context.Context) error {
		lost, err = s.Records.Renew(ctx, owner, running)
		return err
	})
	return lost, err
}

// Once makes one call with Timeout and notes its failure, if ctx has not ended.
func (s *Store) Once(ctx context.Context, what string, call func(context.Context) error) error {
	once, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	err := call(once)
	if err != nil && ctx.Err() == nil {
		s.away(what, err)
	}
	return err
}

// Failure is the last call that failed; nil = none has.
func (s *Store) Failure() *state.StoreFailure { return s.stumbled.Load() }

func (s *Store) flush(ctx context.Context, reply string) error {
	if s.Flush == nil {
		return nil
	}
	return s.Flush(ctx, reply)
}

// repeat calls until there is an answer, at least once and for at most within or until
// ctx ends. A mailbox that is gone is an answer.
func (s *Store) repeat(ctx context.Context, within time.Duration, what string, call func(context.Context) error) error {
	last := time.Now().Add(within)
	for pause := repeatFrom; ; pause = min(2*pause, repeatMost) {
		once, cancel := context.WithTimeout(ctx, s.Timeout)
		err := call(once)
		cancel()
		if err == nil || errors.Is(err, response.ErrGone) {
			return err
		}
		s.away(what, err)
		if time.Now().Add(pause).After(last) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// away notes that the store failed, and logs it at most once per awayEvery.
func (s *Store) away(call string, err error) {
	now := time.Now()
	s.stumbled.Store(&state.StoreFailure{Call: call, Error: err.Error(), At: now})
	if until := s.awayUntil.Load(); now.UnixNano() >= until && s.awayUntil.CompareAndSwap(until, now.Add(awayEvery).UnixNano()) {
		s.Log.Warn("record store failed", "call", call, "err", err)
	}
}
