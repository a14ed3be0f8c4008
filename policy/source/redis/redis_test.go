package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"penstock/policy/source"
	"penstock/policy/source/sourcetest"
	"penstock/redisconn/redisconntest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKey closes after what runs with it has ended: it is made first.
func newKey(t *testing.T, addr, name string) *Key {
	t.Helper()
	k, err := New(Config{Addr: addr, Key: name})
	if err != nil {
		t.Fatal(err)
	}
	k.retry, k.link.Every = 20*time.Millisecond, 20*time.Millisecond
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Stage {
		m := miniredis.RunT(t)
		k := newKey(t, m.Addr(), DefaultKey)
		return sourcetest.Stage{
			Place: k,
			Write: func(text string) {
				if err := m.Set(DefaultKey, text); err != nil {
					t.Fatal(err)
				}
				m.Publish(DefaultKey, "changed")
			},
			Remove: func() { m.Del(DefaultKey); m.Publish(DefaultKey, "changed") },
			Away: func(away bool) {
				if away {
					m.Close()
				} else if err := m.Restart(); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// TestLostMessage: what nobody said is read all the same.
func TestLostMessage(t *testing.T) {
	m := miniredis.RunT(t)
	k := newKey(t, m.Addr(), DefaultKey)
	k.reread = 20 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	looks, done := make(chan string, 1000), make(chan struct{})
	go func() {
		defer close(done)
		k.Watch(ctx, func() {
			text, _ := k.Read(ctx)
			looks <- string(text)
		})
	}()
	<-looks
	if err := m.Set(DefaultKey, "news"); err != nil {
		t.Fatal(err)
	}
	for late := time.After(5 * time.Second); ; {
		select {
		case text := <-looks:
			if text != "news" {
				continue
			}
		case <-late:
			t.Error("not read within 5 s")
		}
		break
	}
	stop()
	<-done
}

// TestAwayIsTriedSeldom: a Redis that is away is tried about once a second.
func TestAwayIsTriedSeldom(t *testing.T) {
	t.Parallel()
	addr, tried := redisconntest.Away(t)
	k, err := New(Config{Addr: addr, Key: DefaultKey})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	const watched = 1500 * time.Millisecond
	ctx, stop := context.WithTimeout(t.Context(), watched)
	defer stop()
	k.Watch(ctx, func() { _, _ = k.Read(ctx) })
	if n := tried.Load(); n < 2 || n > 3 {
		t.Errorf("%d connections in %v, want 2 or 3", n, watched)
	}
}

func TestReplace(t *testing.T) {
	m := miniredis.RunT(t)
	replaces(t, newKey(t, m.Addr(), DefaultKey), goredis.NewClient(&goredis.Options{Addr: m.Addr(), Protocol: 2}))
}

// replaces holds what Replace promises, on any Redis.
func replaces(t *testing.T, k *Key, raw *goredis.Client) {
	defer func() { _ = raw.Close() }()
	ctx := t.Context()
	sub := raw.Subscribe(ctx, k.cfg.Key)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Read(ctx); !errors.Is(err, source.ErrAbsent) || !strings.Contains(err.Error(), "penstock policy push") {
		t.Errorf("Read of nothing: %v", err)
	}
	for _, step := range []struct {
		name      string
		old, text string // old "-" = none
		want      error
		holds     string
	}{
		{"create", "-", "a", nil, "a"},
		{"create again", "-", "b", source.ErrChanged, "a"},
		{"repeated, since the answer was lost", "-", "a", nil, "a"},
		{"change", "a", "b", nil, "b"},
		{"somebody was faster", "a", "c", source.ErrChanged, "b"},
		{"to nothing", "b", "", nil, ""},
		{"from nothing is not from none", "-", "d", source.ErrChanged, ""},
		{"from nothing", "", "d", nil, "d"},
	} {
		old := []byte(step.old)
		if step.old == "-" {
			old = nil
		}
		if err := k.Replace(ctx, old, []byte(step.text)); !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
		if got, err := k.Read(ctx); err != nil || string(got) != step.holds {
			t.Errorf("%s: it holds %q, %v; want %q", step.name, got, err, step.holds)
		}
	}
	for range 4 {
		if _, err := sub.ReceiveTimeout(ctx, 5*time.Second); err != nil {
			t.Fatalf("a change was not told: %v", err)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Addr: "localhost", Key: "k"}, `Addr is "localhost"; set it to host:port`},
		{Config{Addr: "localhost:1"}, "Key is empty; set it to penstock:policy"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}
