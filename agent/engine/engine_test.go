package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/vllm"
)

// TestFollow: every second until the engine has said what it serves, then every 10 s,
// and when woken; an engine that hangs later is not asked more often.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []vllm.Model
		var fails error
		asked := 0
		e := Engine{
			Models: func(context.Context) ([]vllm.Model, error) { asked++; return list, fails },
			Probe:  func(context.Context, string) error { return errors.New("not now") },
		}
		var last Served
		ctx, stop := context.WithCancel(t.Context())
		wake, done := make(chan struct{}), make(chan error)
		go func() { done <- e.Follow(ctx, wake, slog.New(slog.DiscardHandler), func(s Served) { last = s }) }()
		step := func(what string, wait time.Duration, calls int) {
			t.Helper()
			before := asked
			time.Sleep(wait)
			synctest.Wait()
			if got := asked - before; got != calls {
				t.Errorf("%s: asked %d times in %v, want %d", what, got, wait, calls)
			}
		}
		step("no models", 4500*time.Millisecond, 5)
		if !errors.Is(last.Err, errNoModels) {
			t.Errorf("told %+v, want that it names none", last)
		}
		list = []vllm.Model{{ID: "b", MaxModelLen: 100}, {ID: "a", MaxModelLen: 200}, {ID: "b"}}
		step("it says", time.Second, 1)
		if !slices.Equal(last.Models, []string{"a", "b"}) || last.Longest != 200 || last.Err != nil {
			t.Errorf("told %+v, want a and b, 200 tokens", last)
		}
		step("later", 20*time.Second, 2)
		wake <- struct{}{}
		step("woken", time.Second, 1)
		fails = errors.New("hangs")
		step("it hangs", 25*time.Second, 2)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
