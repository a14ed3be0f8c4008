package abort

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestCancel(t *testing.T) {
	for _, tc := range []struct {
		name, id, attempt string
		want              bool
		ended             string // names of the attempts whose context ended
	}{
		{"one attempt", "x", "1", true, "[x/1]"},
		{"any attempt", "x", "", true, "[x/1 x/2]"},
		{"another attempt", "x", "3", false, "[]"},
		{"another id", "z", "", false, "[]"},
		{"another id's attempt", "y", "1", false, "[]"},
		{"empty id", "", "", false, "[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewRunning()
			names := []string{"x/1", "x/2", "y/3"}
			contexts := map[string]context.Context{}
			for _, name := range names {
				ctx, cancel := context.WithCancelCause(t.Context())
				contexts[name] = ctx
				r.Add(name[:1], name[2:], cancel)
			}
			r.Add("", "1", func(error) { t.Error("an empty id was cancelled") })
			if got := r.Cancel(tc.id, tc.attempt); got != tc.want {
				t.Errorf("Cancel(%q, %q) = %v, want %v", tc.id, tc.attempt, got, tc.want)
			}
			ended := []string{}
			for _, name := range names {
				if errors.Is(context.Cause(contexts[name]), ErrAborted) {
					ended = append(ended, name)
				}
			}
			if got := fmt.Sprint(ended); got != tc.ended {
				t.Errorf("ended %s, want %s", got, tc.ended)
			}
			if got := r.Len(); got != 2 {
				t.Errorf("Len after Cancel = %d, want 2: the owner removes", got)
			}
		})
	}
}

func TestRunningAddRemove(t *testing.T) {
	r := NewRunning()
	none := func(error) {}
	r.Add("x", "1", func(error) { t.Error("the replaced cancel was called") })
	r.Add("x", "1", none)
	r.Add("x", "2", none)
	r.Cancel("x", "1")
	for _, step := range []struct {
		attempt string
		has     bool
		len     int
	}{{"3", true, 1}, {"1", true, 1}, {"1", true, 1}, {"2", false, 0}, {"2", false, 0}} {
		r.Remove("x", step.attempt)
		if r.Has("x") != step.has || r.Len() != step.len {
			t.Errorf("after Remove(x, %s): Has %v, Len %d; want %v, %d", step.attempt, r.Has("x"), r.Len(), step.has, step.len)
		}
	}
}

func TestRunningConcurrently(t *testing.T) {
	r := NewRunning()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				id, attempt := fmt.Sprint(j%7), fmt.Sprint(i)
				ctx, cancel := context.WithCancelCause(context.Background())
				r.Add(id, attempt, cancel)
				if !r.Cancel(id, "") || ctx.Err() == nil {
					t.Errorf("attempt %s of %s was not cancelled", attempt, id)
				}
				r.Remove(id, attempt)
			}
		})
	}
	wg.Wait()
	if r.Len() != 0 {
		t.Errorf("Len = %d after all were removed, want 0", r.Len())
	}
}

func TestSeen(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	const keep = 10 * time.Second
	t.Run("kept for keep", func(t *testing.T) {
		s := NewSeen(10, keep)
		s.Mark(at(0), "x")
		for second, want := range map[int]bool{0: true, 9: true, 10: false, 11: false} {
			if got := s.Marked(at(second), "x"); got != want {
				t.Errorf("Marked after %d s = %v, want %v", second, got, want)
			}
		}
		if s.Marked(at(0), "y") {
			t.Error("an id never marked is marked")
		}
	})
	t.Run("marked again", func(t *testing.T) {
		s := NewSeen(2, keep)
		s.Mark(at(0), "x")
		s.Mark(at(1), "y")
		s.Mark(at(5), "x")
		s.Mark(at(6), "z") // pushes out y, the oldest mark
		for id, want := range map[string]bool{"x": true, "y": false, "z": true} {
			if got := s.Marked(at(14), id); got != want {
				t.Errorf("Marked(%s) = %v, want %v", id, got, want)
			}
		}
	})
	t.Run("bounded", func(t *testing.T) {
		s := NewSeen(100, keep)
		for i := range 1000 {
			s.Mark(at(0), fmt.Sprint(i))
		}
		if len(s.ids) != 100 || s.order.Len() != 100 || !s.Marked(at(0), "900") || s.Marked(at(0), "899") {
			t.Errorf("%d ids in %d marks after 1000 marks, want the last 100", len(s.ids), s.order.Len())
		}
		s.Mark(at(60), "late")
		if len(s.ids) != 1 {
			t.Errorf("%d ids a minute later, want the new one only", len(s.ids))
		}
	})
	t.Run("limit below one", func(t *testing.T) {
		s := NewSeen(0, keep)
		s.Mark(at(0), "x")
		s.Mark(at(0), "")
		if !s.Marked(at(0), "x") || s.Marked(at(0), "") {
			t.Error("a set of one does not hold the one id marked")
		}
	})
}

func TestSeenConcurrently(t *testing.T) {
	s := NewSeen(50, time.Hour)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				now := time.Unix(int64(j), 0)
				id := fmt.Sprint(i, j%90)
				s.Mark(now, id)
				s.Marked(now, id)
			}
		})
	}
	wg.Wait()
	if len(s.ids) != 50 || s.order.Len() != 50 {
		t.Errorf("%d ids in %d marks, want 50", len(s.ids), s.order.Len())
	}
}
