package record

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/quota"
	"penstock/registry"
	"penstock/response"
)

// fake is a record store that is away until back.
type fake struct {
	registry.Records
	back  time.Time
	calls []string
}

var errAway = errors.New("away")

func (f *fake) call(name string) error {
	f.calls = append(f.calls, name)
	if time.Now().Before(f.back) {
		return errAway
	}
	return nil
}

func (f *fake) Claim(context.Context, registry.Start) (registry.Claim, error) {
	return registry.Claim{Action: registry.Run}, f.call("claim")
}

func (f *fake) Release(context.Context, string, string, bool) error { return f.call("release") }

func (f *fake) First(context.Context, string, string, []byte) (bool, error) {
	return true, f.call("first")
}

func (f *fake) Finish(context.Context, string, string, []byte, quota.Usage) (bool, error) {
	err := f.call("finish")
	return err == nil, err
}

// TestStore: how long each call is worth repeating.
func TestStore(t *testing.T) {
	for _, tc := range []struct {
		name string
		away time.Duration
		call func(*Store) bool // it came through
		want bool
		took time.Duration // at most
		last string        // call made
	}{
		{"a claim while it is back soon", 500 * time.Millisecond, claims, true, time.Second, "claim"},
		{"a claim given up is released", 1200 * time.Millisecond, claims, false, 2100 * time.Millisecond, "release"},
		{"a finish outlives an outage", 20 * time.Second, func(s *Store) bool { return finishes(s, false) }, true, 22 * time.Second, "finish"},
		{"a finish is given up", time.Hour, func(s *Store) bool { return finishes(s, false) }, false, 31 * time.Second, "finish"},
		{"a finish of what never started is asked once", time.Hour, func(s *Store) bool { return finishes(s, true) }, false, 0, "finish"},
		{"a first event outlives an outage", 20 * time.Second, func(s *Store) bool {
			owner, err := s.First(context.Background(), "i", "a", "r", nil)
			return owner && err == nil
		}, true, 22 * time.Second, "first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := time.Now()
				f := &fake{back: from.Add(tc.away)}
				var logs bytes.Buffer
				s := &Store{Records: f, Timeout: time.Second, Log: slog.New(slog.NewTextHandler(&logs, nil))}
				if got := tc.call(s); got != tc.want || time.Since(from) > tc.took || f.calls[len(f.calls)-1] != tc.last {
					t.Errorf("got %v after %v, calls %v; want %v within %v, last %s", got, time.Since(from), f.calls, tc.want, tc.took, tc.last)
				}
				if n, most := strings.Count(logs.String(), "record store failed"), 1+int(time.Since(from)/awayEvery); n < 1 || n > most {
					t.Errorf("%d lines logged in %v, want 1 to %d", n, time.Since(from), most)
				}
				if s.Failure() == nil || s.Failure().Error != errAway.Error() {
					t.Errorf("failure: got %+v, want the last that failed", s.Failure())
				}
			})
		})
	}
}

func claims(s *Store) bool {
	_, err := s.Claim(context.Background(), registry.Start{})
	return err == nil
}

func finishes(s *Store, once bool) bool {
	return s.Finish(context.Background(), "i", "a", "r", nil, quota.Usage{}, once)
}

// TestMailboxGone: nobody is left to hear it, so it is over.
func TestMailboxGone(t *testing.T) {
	f := &fake{}
	s := &Store{Records: f, Timeout: time.Second, Log: slog.New(slog.DiscardHandler), Flush: func(context.Context, string) error { return response.ErrGone }}
	if _, err := s.First(t.Context(), "i", "a", "r", nil); !errors.Is(err, response.ErrGone) || len(f.calls) != 0 {
		t.Errorf("first: got %v after %v, want gone at once", err, f.calls)
	}
	if !finishes(s, false) {
		t.Error("finish: got not done, want done")
	}
}
