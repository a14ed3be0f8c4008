package quota

import (
	"testing"
	"time"
)

func TestPromise(t *testing.T) {
	d, l := newDesk(t), perMinute(Tenant, Tokens, 6000)
	d.takes(5000, l)
	for i := 1; i <= 5; i++ {
		d.refuses(100, time.Duration(i)*time.Second, l)
		d.Promise(d.now, []Limit{l}, 100)
	}
	for range 5 {
		d.pass(time.Second)
		if v := d.Look(d.now, []Limit{l}, 100, true); v.Refused {
			t.Fatalf("after its sleep: %+v", v)
		}
		d.Take(d.now, []Limit{l}, 100, true)
	}
	d.refuses(100, time.Second, l)
}

// A promise is kept in the turn it is kept in, also by a slice that has no room itself.
func TestPromiseOfASlice(t *testing.T) {
	d, l := newDesk(t), perMinute(Tenant, Tokens, 600_000)
	l.Own, l.Slice = 6000, "vip"
	c := d.takes(100, l)
	d.Settle(d.now, &c, 100_000)
	for range 2 { // the first one never comes
		d.Promise(d.now, []Limit{l}, 100)
		d.pass(MaxWait)
	}
	d.Take(d.now, []Limit{l}, 100, true)
	if b := d.get(l.slice()).now(d.now.UnixMilli(), perMilli(l.Own, l.Per)); b.promised+b.earlier > 0 {
		t.Errorf("the slice still promises %v and %v, want nothing", b.promised, b.earlier)
	}
}
