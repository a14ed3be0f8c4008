package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/vllm"
)

// TestFollow: every second until the engine has said what it serves, then every 10 s,
// and when woken; an engine that hangs later is not asked more often.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the four below
		var list []vllm.Model
		var fails error
		var last Served
		asked := 0
		e := Engine{
			Models: func(context.Context) ([]vllm.Model, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return list, fails
			},
			Probe: func(context.Context, string) error { return errors.New("not now") },
		}
		ctx, stop := context.WithCancel(t.Context())
		wake, done := make(chan struct{}), make(chan error)
		go func() {
			done <- e.Follow(ctx, wake, slog.New(slog.DiscardHandler), func(s Served) {
				mu.Lock()
				defer mu.Unlock()
				last = s
			})
		}()
		step := func(what string, wait time.Duration, calls int) Served {
			t.Helper()
			mu.Lock()
			before := asked
			mu.Unlock()
			time.Sleep(wait)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := asked - before; got != calls {
				t.Errorf("%s: asked %d times in %v, want %d", what, got, wait, calls)
			}
			return last
		}
		set := func(change func()) {
			mu.Lock()
			defer mu.Unlock()
			change()
		}
		if s := step("no models", 4500*time.Millisecond, 5); !errors.Is(s.Err, errNoModels) {
			t.Errorf("told %+v, want that it names none", s)
		}
		set(func() { list = []vllm.Model{{ID: "b", MaxModelLen: 100}, {ID: "a", MaxModelLen: 200}, {ID: "b"}} })
		if s := step("it says", time.Second, 1); !slices.Equal(s.Models, []string{"a", "b"}) || s.Longest != 200 || s.Err != nil {
			t.Errorf("told %+v, want a and b, 200 tokens", s)
		}
		step("later", 20*time.Second, 2)
		wake <- struct{}{}
		step("woken", time.Second, 1)
		set(func() { fails = errors.New("hangs") })
		step("it hangs", 25*time.Second, 2)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
