package quota

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func perMinute(scope string, unit Unit, amount int64) Limit {
	return Limit{Scope: scope, Bucket: "a", Unit: unit, Amount: amount, Per: time.Minute}
}

func window(amount int64, per time.Duration) Limit {
	return Limit{Scope: Tenant, Bucket: "a", Amount: amount, Per: per, Window: true}
}

// desk is a book and its clock.
type desk struct {
	*testing.T
	*Book
	now time.Time
}

func newDesk(t *testing.T) *desk { return &desk{t, New(), epoch} }

func (d *desk) pass(t time.Duration) { d.now = d.now.Add(t) }

// ask looks, and takes where there is room.
func (d *desk) ask(tokens int, limits ...Limit) (Verdict, Charge) {
	v := d.Look(d.now, limits, tokens, false)
	if v.Refused {
		return v, Charge{}
	}
	return v, d.Take(d.now, limits, tokens, false)
}

func (d *desk) takes(tokens int, limits ...Limit) Charge {
	d.Helper()
	v, c := d.ask(tokens, limits...)
	if v.Refused {
		d.Fatalf("%d tokens: %+v, want room", tokens, v)
	}
	return c
}

func (d *desk) refuses(tokens int, wait time.Duration, limits ...Limit) Verdict {
	d.Helper()
	v, _ := d.ask(tokens, limits...)
	if !v.Refused || v.Wait != wait {
		d.Fatalf("%d tokens: %+v, want a wait of %v", tokens, v, wait)
	}
	return v
}

func TestBucketLeaks(t *testing.T) {
	d, l := newDesk(t), perMinute(Tenant, Tokens, 6000) // 100 a second, holds 5000
	d.takes(5000, l)
	d.refuses(100, time.Second, l)
	d.refuses(1000, 10*time.Second, l)
	d.pass(time.Second)
	d.takes(100, l)
	d.pass(time.Hour)
	d.takes(5000, l)
	d.refuses(1, 10*time.Millisecond, l)
}

// What is larger than the bucket goes when it is empty, and leaves a debt.
func TestLargerThanTheBucket(t *testing.T) {
	d, l := newDesk(t), perMinute(Tenant, Tokens, 6000)
	d.takes(1000, l)
	d.refuses(9000, 10*time.Second, l)
	d.pass(10 * time.Second)
	d.takes(9000, l)
	d.refuses(1000, 50*time.Second, l)
}

func TestAllScopesOrNone(t *testing.T) {
	d := newDesk(t)
	tenant, key := perMinute(Tenant, Tokens, 60_000), perMinute(Key, Tokens, 600) // holds 50,000 and 500
	requests := perMinute(Tenant, Requests, 60)
	d.takes(500, tenant, key, requests)
	v := d.refuses(100, 10*time.Second, tenant, key, requests)
	if v.Tripped != 1 {
		t.Errorf("limit %d tripped, want the key's, 1", v.Tripped)
	}
	for range 10 {
		d.refuses(100, 10*time.Second, tenant, key, requests)
	}
	v, _ = d.ask(1, tenant, requests)
	if want := [2]int64{50_000 - 501, 50 - 2}; v.Rooms[0].Remaining != want[0] || v.Rooms[1].Remaining != want[1] {
		t.Errorf("left after refusals: %+v, want %v", v.Rooms[:2], want)
	}
	if got := v.Rooms[0].Reset; got != 501*time.Millisecond {
		t.Errorf("reset %v, want 501ms", got)
	}
	if i := v.Tightest([]Limit{tenant, requests}, Requests); i != 1 {
		t.Errorf("tightest limit of requests %d, want 1", i)
	}
}

func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name string
		used int
		left int64 // of 5000, with 1000 reserved
	}{
		{"as reserved", -1, 4000}, {"exactly", 1000, 4000}, {"less", 300, 4700}, {"nothing", 0, 5000}, {"more", 4000, 1000}, {"a debt", 8000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, l := newDesk(t), perMinute(Tenant, Tokens, 6000)
			requests, day := perMinute(Tenant, Requests, 60), window(5000, Day)
			charge := d.takes(1000, l, requests, day)
			d.Settle(d.now, &charge, c.used)
			v := d.Look(d.now, []Limit{l, requests, day}, 1, false)
			cost := int64(1)
			if v.Refused {
				cost = 0
			}
			for _, i := range []int{0, 2} {
				if got := v.Rooms[i].Remaining + cost; got != max(c.left, cost) {
					t.Errorf("limit %d: %d left, want %d", i, got, c.left)
				}
			}
			if got := v.Rooms[1].Remaining + cost; got != 49 {
				t.Errorf("%d requests left, want 49: none is given back", got)
			}
			if c.used > 5000 {
				d.refuses(100, 12*time.Hour, l, day) // the window's end is last
				d.refuses(100, 31*time.Second, l)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	d, l := newDesk(t), window(1000, time.Hour)
	d.pass(59 * time.Minute)
	d.takes(1000, l)
	d.refuses(1, time.Minute, l)
	d.pass(time.Minute)
	d.takes(900, l) // twice the limit across a boundary
	c := d.takes(100, l)
	d.refuses(1, time.Hour, l)
	d.pass(time.Hour)
	d.takes(1000, l)
	d.Settle(d.now, &c, 0) // of the window before: nothing comes back
	d.refuses(1, time.Hour, l)
}

func TestBudget(t *testing.T) {
	for per, want := range map[time.Duration]bool{time.Hour: false, Day: true, 7 * Day: true} {
		if l := window(1, per); l.Budget() != want {
			t.Errorf("a window of %v is a budget: %v, want %v", per, l.Budget(), want)
		}
	}
	if l := perMinute(Tenant, Tokens, 1); l.Budget() {
		t.Error("a bucket is a budget")
	}
}

// A tier has its slice however much others take, and what they leave.
func TestSlice(t *testing.T) {
	d := newDesk(t)
	pool := Limit{Scope: Tier, Bucket: "all", Amount: 6000, Per: time.Minute} // holds 5000
	owner := pool
	owner.Own, owner.Slice = 1200, "vip" // holds 1000, 20 a second
	d.takes(5000, pool)
	d.refuses(1000, 10*time.Second, pool)
	d.takes(1000, owner) // its own
	d.refuses(100, 5*time.Second, owner)
	d.refuses(1000, 20*time.Second, pool) // it pays for that
	d.pass(5 * time.Second)
	d.takes(100, owner)
	d.pass(time.Hour)
	for range 5 {
		d.takes(1000, owner) // borrowed but for the first
	}
	d.refuses(1000, 10*time.Second, owner)
	d.pass(10 * time.Second)
	d.takes(200, owner) // its own grew, whatever it has borrowed
}

// Who sleeps is not overtaken, and wakes to room.
func TestForgets(t *testing.T) {
	d := newDesk(t)
	const tenants = 25_000
	for i := range tenants {
		l := perMinute(Tenant, Tokens, 6000)
		l.Bucket = strconv.Itoa(i)
		d.takes(100, l)
	}
	debt := perMinute(Key, Tokens, 60)
	c := d.takes(50, debt)
	d.Settle(d.now, &c, 3600)
	day := window(100, Day)
	d.takes(1, day)
	d.pass(Idle)
	for range 4 {
		d.Sweep(d.now)
	}
	if d.Len() != 2 {
		t.Errorf("%d buckets after %v, want 2: the debt and the budget", d.Len(), Idle)
	}
	for range 60 {
		d.pass(time.Minute)
		d.Sweep(d.now)
	}
	if d.Len() != 1 {
		t.Errorf("%d buckets after the debt is paid, want 1, the budget", d.Len())
	}
	d.pass(Day)
	d.Sweep(d.now)
	if d.Len() != 0 {
		t.Errorf("%d buckets after the day, want none", d.Len())
	}
}

func TestValidate(t *testing.T) {
	good := perMinute(Tenant, Tokens, 100)
	if err := Check([]Limit{good}); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Limit){
		"no bucket":        func(l *Limit) { l.Bucket = "" },
		"no amount":        func(l *Limit) { l.Amount = 0 },
		"too much":         func(l *Limit) { l.Amount = math.MaxInt64 },
		"no time":          func(l *Limit) { l.Per = 0 },
		"no millisecond":   func(l *Limit) { l.Per = time.Minute + 1 },
		"a nameless slice": func(l *Limit) { l.Own = 1 },
		"a slice too big":  func(l *Limit) { l.Own, l.Slice = 101, "s" },
		"a window's slice": func(l *Limit) { l.Own, l.Slice, l.Window = 1, "s", true },
	} {
		l := good
		if spoil(&l); l.Validate() == nil {
			t.Errorf("%s: %+v is valid", name, l)
		}
	}
	if Check(make([]Limit, MaxLimits+1)) == nil {
		t.Error("nine limits are valid")
	}
}

// parallel: however many come at once, the limit is passed by one request at most.
func TestParallel(t *testing.T) {
	for _, l := range []Limit{perMinute(Tenant, Tokens, 12_000), window(10_000, time.Minute)} { // 10,000 each
		d, in := newDesk(t), 0
		for range 200 {
			if v, _ := d.ask(4000, l); !v.Refused {
				in += 4000
			}
		}
		if in > 10_000+4000 || in < 8000 {
			t.Errorf("%d tokens of a budget of 10,000 went in, want 8,000 to 14,000", in)
		}
	}
}

// event is something that happens to a request in the hour.
type event struct {
	at     time.Time
	tokens int
	slept  time.Duration
	charge *Charge
	used   int
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// TestHour: random arrivals at 2.5 times the rate, sizes and usages as they come. What
// is let in stays within rate x time + burst, and is 95 % of it at least; what is
// settled is what was used.
func TestHour(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { hour(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func hour(t *testing.T, r *rand.Rand) {
	const rate, mean, length = 10_000.0, 1500, time.Hour // tokens a second
	limits := []Limit{perMinute(Tenant, Tokens, rate*60), perMinute(Key, Tokens, rate*60*2), perMinute(Tenant, Requests, 6000)}
	d := newDesk(t)
	var next events
	for at := 0.0; at < length.Seconds(); at += r.ExpFloat64() * mean / rate / 2.5 {
		tokens := 1 + int(mean*math.Exp(r.NormFloat64()-0.5))
		heap.Push(&next, event{at: epoch.Add(time.Duration(at * float64(time.Second))), tokens: tokens})
	}
	var used, reserved, opens, sleeps int
	var totals Totals
	for len(next) > 0 {
		e := heap.Pop(&next).(event)
		if d.now = e.at; e.charge != nil {
			d.Settle(d.now, e.charge, e.used)
			totals.Settle(e.charge.Tokens, e.used)
			continue
		}
		opens++
		v := d.Look(d.now, limits, e.tokens, e.slept > 0)
		switch {
		case !v.Refused:
			charge := d.Take(d.now, limits, e.tokens, e.slept > 0)
			u := int(float64(e.tokens) * (0.2 + 1.1*r.Float64())) // 0.75 on average
			if r.IntN(10) == 0 {
				u = 0 // canceled
			}
			reserved += e.tokens
			used += u
			heap.Push(&next, event{at: d.now.Add(time.Duration(r.ExpFloat64() * 5 * float64(time.Second))), charge: &charge, used: u})
			if most := rate*(d.now.Sub(epoch)+Burst).Seconds() + mean*40; float64(reserved)-float64(totals.Refunded) > most {
				t.Fatalf("%d tokens in after %v, want %.0f at most", reserved, d.now.Sub(epoch), most)
			}
		case e.slept+v.Wait <= MaxWait:
			if e.slept == 0 {
				d.Promise(d.now, limits, e.tokens)
			}
			sleeps++
			heap.Push(&next, event{at: d.now.Add(v.Wait), tokens: e.tokens, slept: e.slept + v.Wait})
		}
	}
	if totals.Settled != int64(used) {
		t.Errorf("settled %d, used %d", totals.Settled, used)
	}
	full, burst := rate*length.Seconds(), rate*Burst.Seconds()
	t.Logf("used %.3f of the rate, %d opens, %d sleeps", float64(used)/full, opens, sleeps)
	if float64(used) < 0.95*full || float64(used) > full+1.1*burst {
		t.Errorf("%d tokens used in an hour, want %.0f to %.0f", used, 0.95*full, full+burst)
	}
}

var eight = func() (all []Limit) {
	for i := range MaxLimits {
		l := perMinute(Tenant, Unit(i%2), 1e12)
		l.Bucket = strconv.Itoa(i)
		if i == 0 {
			l.Own, l.Slice = 1e6, "s"
		}
		if i == 2 {
			l.Window = true
		}
		all = append(all, l)
	}
	return all
}()

// BenchmarkRequest is all that a request with eight limits costs: look, take, settle.
func BenchmarkRequest(b *testing.B) {
	k, now := New(), epoch
	for b.Loop() {
		now = now.Add(time.Millisecond)
		if v := k.Look(now, eight, 1000, false); v.Refused {
			b.Fatal(v)
		}
		c := k.Take(now, eight, 1000, false)
		k.Settle(now, &c, 700)
	}
}
