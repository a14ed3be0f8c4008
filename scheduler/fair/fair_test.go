package fair

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLift(t *testing.T) {
	for _, c := range []struct {
		name          string
		before        func(c *Counters, a Tenant)
		opened, least int64
		want          int64
	}{
		{"a new one rises to the lowest that waits", func(*Counters, Tenant) {}, 5, 70, 70},
		{"one that had a request in the queue all along keeps its counter", func(c *Counters, a Tenant) {
			c.Charge(a, 10)
			c.Left(a, 5)
		}, 5, 70, 10},
		{"one that had none does not", func(c *Counters, a Tenant) {
			c.Charge(a, 10)
			c.Left(a, 5)
		}, 6, 70, 70},
		{"nobody sinks", func(c *Counters, a Tenant) { c.Charge(a, 90) }, 5, 70, 90},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := New()
			a := all.Of(1)
			c.before(all, a)
			all.Lift(a, c.opened, c.least)
			if got := all.Tokens(a); got != c.want {
				t.Errorf("counter %d, want %d", got, c.want)
			}
		})
	}
}

func TestLast(t *testing.T) {
	all := New()
	if got := all.Last(); got != 0 {
		t.Errorf("Last is %d before anybody left, want 0", got)
	}
	a := all.Of(1)
	all.Left(a, 1)
	all.Charge(a, 50)
	if got := all.Last(); got != 50 {
		t.Errorf("Last is %d, want the 50 of who left", got)
	}
}

func TestShared(t *testing.T) {
	all := New()
	a, b := all.Of(1), all.Of(2)
	want := func(one, two, other bool) {
		t.Helper()
		if got := [3]bool{all.Shared(1), all.Shared(2), all.Shared(3)}; got != [3]bool{one, two, other} {
			t.Errorf("shared with others for 1, 2 and one not known: %v, want %v", got, [3]bool{one, two, other})
		}
	}
	want(false, false, false)
	all.Run(a, 1)
	all.Run(a, 1)
	want(false, true, true)
	all.Run(b, 1)
	want(true, true, true)
	all.Run(a, -1)
	all.Run(a, -1)
	want(true, false, true)
}

// Any use keeps at most Most tenants, each found again by its own key, and who was
// forgotten is charged for nobody else.
func TestBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := New()
		held := map[uint64]Tenant{}
		for range rapid.IntRange(1, 3*Most).Draw(t, "n") {
			key := rapid.Uint64Range(1, 2*Most).Draw(t, "key")
			held[key] = all.Of(key)
			if all.Of(key) != held[key] {
				t.Fatalf("tenant %d has two counters", key)
			}
			all.Charge(held[key], int64(key))
		}
		if len(all.all) > Most || len(all.of) > Most {
			t.Fatalf("%d counters and %d names, want at most %d", len(all.all), len(all.of), Most)
		}
		for key, tenant := range held {
			if n := all.Tokens(tenant); n%int64(key) != 0 {
				t.Fatalf("tenant %d has %d tokens, charged by others", key, n)
			}
			all.Charge(tenant, -int64(key))
		}
	})
}

func BenchmarkTokens(b *testing.B) {
	all := New()
	var tenants []Tenant
	for i := range uint64(128) {
		tenants = append(tenants, all.Of(i+1))
	}
	for i := 0; b.Loop(); i++ {
		all.Tokens(tenants[i%128])
	}
}
