package admission

import (
	"strconv"
	"testing"
	"time"

	"penstock/lane"
)

func TestSends(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		rate    float64
		offered time.Duration // one request each
		least   int           // let through in 60 s
		most    int
	}{
		{10, 10 * time.Millisecond, 600, 610},
		{10, time.Second, 60, 60},
		{0.5, 100 * time.Millisecond, 30, 31},
		{200, time.Millisecond, 12_000, 12_200},
	} {
		s, k, sent := sends{next: map[lane.Key]time.Time{}}, lane.Key{Model: "q"}, 0
		for at := time.Duration(0); at < time.Minute; at += c.offered {
			if s.wait(k, c.rate, now.Add(at)) == 0 {
				sent++
			}
		}
		if sent < c.least || sent > c.most {
			t.Errorf("%g per second: %d in a minute, want %d to %d", c.rate, sent, c.least, c.most)
		}
	}
	s := sends{next: map[lane.Key]time.Time{}}
	for i := range mostPaced + 100 {
		s.wait(lane.Key{Tenant: strconv.Itoa(i)}, 0.1, now)
	}
	if len(s.next) != mostPaced {
		t.Errorf("%d lanes remembered, want %d", len(s.next), mostPaced)
	}
	s.wait(lane.Key{Tenant: "late"}, 0.1, now.Add(time.Minute))
	if len(s.next) != 1 {
		t.Errorf("%d lanes remembered once they are past, want 1", len(s.next))
	}
}
