package stack

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestInOrder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails string // the part that returns at once, or "" for the context
	}{{"context ends", ""}, {"first fails", "door"}, {"last fails", "rest"}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var mu sync.Mutex
				var ended []string
				broken := errors.New("broken")
				run := func(name string) part {
					return func(ctx context.Context) error {
						if name == tt.fails {
							return broken
						}
						<-ctx.Done()
						mu.Lock()
						defer mu.Unlock()
						ended = append(ended, name)
						return nil
					}
				}
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					err = inOrder(ctx, []part{run("door")}, []part{run("node"), run("node")}, []part{run("rest")})
				}()
				synctest.Wait()
				if tt.fails == "" {
					cancel()
				}
				<-done
				want := slices.DeleteFunc([]string{"door", "node", "node", "rest"}, func(s string) bool { return s == tt.fails })
				if !slices.Equal(ended, want) || errors.Is(err, broken) != (tt.fails != "") {
					t.Errorf("ended %v with %v, want %v", ended, err, want)
				}
			})
		})
	}
}
