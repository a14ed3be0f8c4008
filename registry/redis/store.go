package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"penstock/redisconn"
	"penstock/registry"
)

// ErrFull says that Redis is at its maxmemory: new work is refused, what ends or
// prolongs work still is written. Such an error is registry.ErrAway too.
var ErrFull = errors.New("registry/redis: out of memory")

const (
	// tripAfter failures in a row open the breaker; then one call every probeEvery tries.
	tripAfter  = 3
	probeEvery = 200 * time.Millisecond
	// slowest is the rate in bytes/s that a deadline allows for.
	slowest = 8 << 20
)

// newBreaker makes calls fail at once while Redis does not answer. Its state changes
// are logged once each.
func (r *Registry) newBreaker() *gobreaker.CircuitBreaker[any] {
	return gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name: "redis", MaxRequests: 1, Timeout: probeEvery,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool { return !away(err) },
		IsExcluded:   func(err error) bool { return errors.Is(err, context.Canceled) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			r.metrics.breaker.Set(float64(to))
			switch to {
			case gobreaker.StateOpen:
				if !r.down.Swap(true) {
					r.log.Warn("redis is away", "error", r.trouble())
				}
			case gobreaker.StateClosed:
				r.down.Store(false)
				r.log.Info("redis is back")
			case gobreaker.StateHalfOpen:
			}
		},
	})
}

// run runs one script, bytes being the size of its events. The caller's own end is
// returned as it is; everything Redis is to blame for is registry.ErrAway.
func (r *Registry) run(ctx context.Context, name string, bytes int, args ...any) (any, error) {
	args = append([]any{r.cfg.Prefix}, args...)
	return r.call(ctx, name, bytes, func(ctx context.Context) (any, error) {
		return r.scripts[name].Run(ctx, r.client, nil, args...).Result()
	})
}

func (r *Registry) call(parent context.Context, op string, bytes int, do func(context.Context) (any, error)) (any, error) {
	m, begin := r.metrics.ops[op], time.Now()
	answer, err := r.breaker.Execute(func() (any, error) {
		ctx, cancel := context.WithTimeout(parent, r.cfg.Deadline+time.Duration(bytes)*time.Second/slowest)
		defer cancel()
		answer, err := do(ctx)
		if parent.Err() != nil && err != nil {
			return nil, fmt.Errorf("%w: %w", context.Canceled, parent.Err()) // says nothing about Redis
		}
		if away(err) {
			r.why.Store(&err)
		}
		return answer, err
	})
	kind := kindOf(err)
	if kind == refusedAtOnce {
		m.errors[kind].Inc()
		return nil, fmt.Errorf("%w: %s: %w: %s", registry.ErrAway, op, err, r.trouble())
	}
	m.seconds.Observe(time.Since(begin).Seconds())
	if kind == failedNot {
		return answer, nil
	}
	m.errors[kind].Inc()
	switch kind {
	case failedFull:
		return nil, fmt.Errorf("%w: %w: %s: %w", registry.ErrAway, ErrFull, op, err)
	case failedScript:
		return nil, fmt.Errorf("registry/redis: %s: %w", op, err)
	case failedCaller:
		return nil, fmt.Errorf("registry/redis: %s: %w", op, parent.Err())
	}
	return nil, fmt.Errorf("%w: %s: %w", registry.ErrAway, op, err)
}

// trouble is what the last call that found Redis away ran into, and what to do about it.
func (r *Registry) trouble() string {
	if err := r.why.Load(); err != nil {
		return redisconn.WithFix(*err)
	}
	return "no call yet"
}

// kind of failure, a metric label.
type kind int

const (
	failedNot     kind = iota
	failedTimeout      // no answer within the deadline
	failedNetwork      // no connection, or a broken one
	failedReplica      // READONLY, LOADING and the like: a failover or a restart is under way
	failedDenied       // a wrong password, or a user without the right
	failedFull         // OOM
	failedMailbox      // the gateway lives and its mailbox is not there yet
	failedScript       // anything else Redis answered: a bug, or a format not known
	failedCaller       // the caller's context ended
	refusedAtOnce      // the breaker is open
	kinds
)

var kindNames = [kinds]string{
	failedTimeout: "timeout", failedNetwork: "network", failedReplica: "not_primary", failedDenied: "denied", failedFull: "out_of_memory",
	failedMailbox: "mailbox", failedScript: "script", failedCaller: "caller", refusedAtOnce: "breaker_open",
}

func kindOf(err error) kind {
	var timeout net.Error
	var answer goredis.Error
	switch {
	case err == nil || errors.Is(err, goredis.Nil):
		return failedNot
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return refusedAtOnce
	case errors.Is(err, context.Canceled):
		return failedCaller
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, goredis.ErrPoolTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return failedTimeout
	case errors.As(err, &answer):
		text := answer.Error()
		for _, k := range []struct {
			part string
			kind kind
		}{
			{"READONLY", failedReplica},
			{"LOADING", failedReplica},
			{"MASTERDOWN", failedReplica},
			{"MISCONF", failedReplica},
			{"BUSY ", failedReplica},
			{"NOREPLICAS", failedReplica},
			{"WRONGPASS", failedDenied},
			{"NOAUTH", failedDenied},
			{"unauthenticated", failedDenied}, // a request too long for who is not known
			{"NOPERM", failedDenied},
			{"The user executing the script", failedDenied},
			{"OOM ", failedFull},
			{"MAILBOX", failedMailbox},
		} {
			if strings.Contains(text, k.part) {
				return k.kind
			}
		}
		return failedScript
	}
	return failedNetwork
}

// away says whether err counts against the breaker.
func away(err error) bool {
	switch kindOf(err) {
	case failedTimeout, failedNetwork, failedReplica, failedDenied:
		return true
	default:
		return false
	}
}
