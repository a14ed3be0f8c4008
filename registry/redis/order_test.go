package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	goredis "github.com/redis/go-redis/v9"

	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

// call is what one caller did; the answer of one whose reply was lost is "".
type call struct {
	op, attempt string
	flag        bool // release: blameless; cancel: only if queued
}

// told is the record as the rules say it, while no time passes.
type told struct {
	state    registry.State
	attempt  string
	tries    int
	canceled bool
}

// step is the whole protocol: what a call answers and leaves.
func (r told) step(c call) (string, told) {
	mine := r.attempt == c.attempt
	switch c.op {
	case "claim":
		switch {
		case r.state == registry.Finished:
			return "ack already_done", r
		case r.canceled:
			return "ack aborted", r
		case r.state == registry.Running && mine:
			return fmt.Sprint("run ok ", r.tries), r
		case r.state != registry.Queued:
			return "suspend live_owner", r
		case r.tries == registry.MaxTries:
			r.state = registry.Finished
			return "ack tries_used", r
		}
		r.state, r.attempt = registry.Running, c.attempt
		r.tries++
		return fmt.Sprint("run ok ", r.tries), r
	case "first":
		if r.canceled || !mine || r.state != registry.Running && r.state != registry.Streaming {
			return "false", r
		}
		r.state = registry.Streaming
		return "true", r
	case "finish":
		if r.state != registry.Finished && r.state != registry.Queued && !mine {
			return "false", r
		}
		r.state = registry.Finished
		return "true", r
	case "release":
		switch {
		case r.state != registry.Running || !mine:
		case r.canceled:
			r.state = registry.Finished
		default:
			r.state, r.attempt = registry.Queued, ""
			if c.flag {
				r.tries--
			}
		}
		return "", r
	}
	found := fmt.Sprint(r.state)
	switch {
	case r.state == registry.Queued:
		r.state = registry.Finished
	case r.state != registry.Finished && !c.flag:
		r.canceled = true
	}
	return found, r
}

func do(r *Registry, id string, c call) (string, error) {
	ctx := context.Background()
	switch c.op {
	case "claim":
		got, err := r.Claim(ctx, start(id, c.attempt, chat))
		action := map[registry.Action]string{registry.Run: "run", registry.Ack: "ack", registry.Suspend: "suspend"}[got.Action]
		if got.Action == registry.Run {
			return fmt.Sprint("run ok ", got.Tries), err
		}
		return action + " " + got.Reason.String(), err
	case "first":
		ok, err := r.First(ctx, id, c.attempt, []byte("first"))
		return fmt.Sprint(ok), err
	case "finish":
		ok, err := r.Finish(ctx, id, c.attempt, []byte("end"), quota.Usage{})
		return fmt.Sprint(ok), err
	case "release":
		return "", r.Release(ctx, id, c.attempt, c.flag)
	}
	got, err := r.Cancel(ctx, id, c.flag)
	return fmt.Sprint(got.State), err
}

// linearizable plays callers that race for the same records, crash between any two
// calls (they just go on to another record) and lose replies, and looks for an order
// in which the rules explain every answer.
func linearizable(t *testing.T, s *server, records int) {
	cfg := testConfig(s)
	cfg.LaneRequests, cfg.LaneBytes, cfg.TotalBytes = 1<<20, 1<<30, 1<<30
	r := dial(t, s, cfg)
	model := porcupine.Model{
		Init: func() any { return told{state: registry.Queued} },
		Step: func(state, in, out any) (bool, any) {
			want, next := state.(told).step(in.(call))
			return out == "" || out == want, next
		},
	}
	s.raw.XAdd(t.Context(), &goredis.XAddArgs{Stream: "g", Values: []string{"from", "0-0"}})
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range records {
		id := name(n)
		openOne(t, r, id, chat)
		const callers, calls = 4, 6
		var mu sync.Mutex
		var history []porcupine.Operation
		var all sync.WaitGroup
		for w := range callers {
			plan := make([]call, calls)
			for i := range plan {
				ops := []string{"claim", "claim", "first", "finish", "release", "release", "cancel"}
				plan[i] = call{ops[rng.IntN(len(ops))], fmt.Sprint("a", w, "-", rng.IntN(2)), rng.IntN(2) == 0}
			}
			all.Go(func() {
				for _, c := range plan {
					begin := time.Now().UnixNano()
					out, err := do(r, id, c)
					end := time.Now().UnixNano()
					if err != nil {
						t.Errorf("%+v: %v", c, err)
						return
					}
					if end%3 == 0 {
						out = "" // it got lost; the caller may have crashed, or asks again
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: w, Input: c, Output: out, Call: begin, Return: end})
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if result := porcupine.CheckOperationsTimeout(model, history, 20*time.Second); result != porcupine.Ok {
			t.Fatalf("record %s: no order explains %+v: %v", id, history, result)
		}
		ends := 0
		for _, e := range events(t, s, "g") {
			if e == "end" || e == string(cfg.Terminal(id, "", reason.TriesUsed)) {
				ends++
			}
		}
		if ends > n+1 {
			t.Fatalf("%d terminal events for %d records", ends, n+1)
		}
		audit(t, s)
	}
}

func TestLinearizable(t *testing.T) { linearizable(t, fake(t), 15) }
