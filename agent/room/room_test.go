package room

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/scheduler"
)

// desk is a room before an engine of 65,536 KV tokens.
type desk struct {
	*Room
	t      *testing.T
	sched  *scheduler.State
	now    time.Time
	bar    reason.Reason
	limits map[string]int // by tenant
	told   []string       // the last of each head, in order
	ids    int
}

func open(t *testing.T, size, perLane int) *desk {
	t.Helper()
	d := &desk{t: t, now: time.Unix(1000, 0), bar: reason.OK, limits: map[string]int{}}
	cfg := scheduler.DefaultConfig()
	cfg.Law = scheduler.Watermark
	cfg.Tiers = []scheduler.Tier{{Name: "a", Ceiling: 1}, {Name: "b", Ceiling: 1}}
	var err error
	if d.sched, err = scheduler.New(cfg, d.now); err != nil {
		t.Fatal(err)
	}
	d.Room = New(Config{
		Size: size, PerLane: perLane, Limit: func(k lane.Key) int { return d.limits[k.Tenant] },
		Barred: func() (scheduler.Verdict, bool) {
			return scheduler.Verdict{Reason: d.bar, After: time.Second}, d.bar != reason.OK
		},
		Told: func(_ time.Time, id string, _ *scheduler.Request, v scheduler.Verdict) {
			d.told = append(d.told, fmt.Sprint(id, " ", v.Action, " ", v.Reason))
		},
	}, d.sched)
	d.level(0.1)
	return d
}

// level is a sample with this KV usage; the room is not filled.
func (d *desk) level(kv float64) {
	d.now = d.now.Add(50 * time.Millisecond)
	d.sched.Observe(d.now, scheduler.Sample{At: d.now, Asked: d.now, KV: kv, Running: 4, KVTokens: 65536, Ranks: 1, Steps: float64(d.now.UnixMilli())})
}

// full is where a big request waits for tokens that are about to come free.
func (d *desk) full() { d.level(0.79) }

func key(tenant string) lane.Key { return lane.Key{Tier: "a", Model: "m", Tenant: tenant} }

// big delivers a request that starts below a KV usage of 0.69 only.
func (d *desk) big(tenant string) *Head { return d.deliver(tenant, 15_000, time.Hour) }

func (d *desk) deliver(tenant string, tokens int, deadline time.Duration) *Head {
	d.ids++
	id := fmt.Sprint(d.ids)
	return d.Decide(d.now, id, key(tenant), &scheduler.Request{
		Hash: uint64(d.ids) << 32, PromptTokens: tokens, ExpectedOut: 4, MaxTokens: 4, Sequences: 1, Tenant: uint64(len(tenant)),
		Opened: d.now, Deadline: d.now.Add(deadline), SLOTTFT: time.Hour, Stream: true,
	})
}

// want compares a head's answer with action and reason; "" = it has none yet.
func (d *desk) want(what string, h *Head, want string) (a Answer) {
	d.t.Helper()
	got := ""
	select {
	case a = <-h.Answer:
		got = fmt.Sprint(a.Action, " ", a.Reason)
	default:
	}
	if got != want {
		d.t.Errorf("%s: got %q, want %q", what, got, want)
	}
	if (a.Slot != 0) != (a.Action == scheduler.Start) {
		d.t.Errorf("%s: slot %v with %v", what, a.Slot, a.Action)
	}
	return a
}

func TestAtOnce(t *testing.T) {
	d := open(t, 8, 2)
	started := d.want("on an idle engine", d.big("x"), "start ok")
	d.sched.Release(d.now, started.Slot)
	d.Ended(d.now, key("x"))
	d.want("past its deadline", d.deliver("x", 1, -time.Second), "drop queue_deadline_exceeded")
	d.bar = reason.GPULost
	if a := d.want("barred", d.big("x"), "suspend gpu_lost"); a.After != time.Second {
		t.Errorf("barred: suspended for %v, want the bar's 1s", a.After)
	}
	d.bar = reason.OK
	d.level(0.95)
	d.want("full engine", d.big("x"), "suspend kv_high")
	if len(d.Held()) != 0 || len(d.lanes.running) != 0 {
		t.Errorf("left behind: %v, %v", d.Held(), d.lanes.running)
	}
}

func TestHeld(t *testing.T) {
	d := open(t, 3, 2)
	d.full()
	a, b := d.big("x"), d.big("x")
	d.want("third of one lane", d.big("x"), "suspend room_full")
	c := d.big("y")
	d.want("fourth of three", d.big("z"), "suspend room_full")
	urgent := d.deliver("w", 15_000, time.Minute)
	if got := len(d.Held()); got != 3 || len(a.answer)+len(b.answer)+len(c.answer) != 1 || len(urgent.answer) != 0 {
		t.Errorf("a head whose turn is first: got %d held and answers %d %d %d %d, want it to take the place of one", got, len(a.answer), len(b.answer), len(c.answer), len(urgent.answer))
	}
	d.bar = reason.EngineDown
	d.level(0.1)
	if v := d.Fill(d.now); v.Action != scheduler.Hold || v.Reason != reason.EngineDown || len(d.Held()) != 3 {
		t.Errorf("barred: got %v, %d held; want all held for engine_down", v, len(d.Held()))
	}
	d.bar = reason.OK
	d.Fill(d.now)
	d.want("first once there is room", urgent, "start ok")
	if d.lanes.running[key("w")] != 1 {
		t.Errorf("of its lane: %v, want 1 running", d.lanes.running)
	}
}

func TestLeaving(t *testing.T) {
	d := open(t, 8, 8)
	d.full()
	late, gone, x, y := d.big("x"), d.big("x"), d.big("x"), d.big("x")
	hold := d.Held()[0].Reason
	d.Expire(d.now, late)
	d.want("waited long enough", late, "suspend "+hold)
	d.Expire(d.now, late)
	d.want("twice", late, "")
	d.Drop(d.now, "2")
	d.Drop(d.now, "nobody")
	d.want("aborted", gone, "drop aborted")
	d.Rank([]scheduler.Tier{{Name: "new"}, {Name: "a"}})
	if d.reqs[0].Tier != 1 || d.reqs[1].Tier != 1 {
		t.Errorf("new tiers: got places %d and %d, want 1", d.reqs[0].Tier, d.reqs[1].Tier)
	}
	d.Empty(d.now, reason.Draining)
	d.want("drained", x, "suspend draining")
	d.want("drained", y, "suspend draining")
	want := []string{"1 hold " + hold, "2 hold " + hold, "3 hold " + hold, "4 hold " + hold, "1 suspend " + hold, "2 drop aborted", "3 suspend draining", "4 suspend draining"}
	if !slices.Equal(d.told, want) {
		t.Errorf("told:\n%q\nwant\n%q", d.told, want)
	}
}

func TestLaneLimit(t *testing.T) {
	d := open(t, 8, 8)
	d.limits["x"] = 1
	d.want("first", d.deliver("x", 10, time.Hour), "start ok")
	d.want("second", d.deliver("x", 10, time.Hour), "suspend lane_concurrency")
	d.want("another lane", d.deliver("y", 10, time.Hour), "start ok")
	ended := d.Park(key("x"))
	if d.Park(key("x")) != nil {
		t.Error("two of a lane may wait for an end, want one")
	}
	select {
	case <-ended:
		t.Error("parked: told of an end that was none")
	default:
	}
	d.Ended(d.now, key("y"))
	d.Ended(d.now, key("x"))
	<-ended
	<-d.Park(key("x")) // it is not full
	d.want("once it ended", d.deliver("x", 10, time.Hour), "start ok")
	again := d.Park(key("x"))
	d.Unpark(key("x"), ended) // of an earlier wait
	if d.lanes.parked[key("x")] == nil {
		t.Error("an old Unpark gave up the new place")
	}
	d.Unpark(key("x"), again)
	for i := range mostParked {
		tenant := fmt.Sprint(i)
		d.limits[tenant] = 1
		d.lanes.running[key(tenant)] = 1
		if d.Park(key(tenant)) == nil {
			t.Fatalf("lane %d may not wait", i)
		}
	}
	if d.Park(key("x")) != nil {
		t.Errorf("%d lanes wait, want at most %d", mostParked+1, mostParked)
	}
}

// TestOneAnswerEach: whatever happens in whatever order, each head gets one answer and
// nothing stays behind.
func TestOneAnswerEach(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	d := open(t, 4, 2)
	d.limits["x"] = 3
	type start struct {
		lane lane.Key
		slot scheduler.Slot
	}
	var heads []*Head
	var runs []start
	collect := func() {
		heads = slices.DeleteFunc(heads, func(h *Head) bool {
			select {
			case a := <-h.Answer:
				if a.Action == scheduler.Start {
					runs = append(runs, start{h.lane, a.Slot})
				}
				return true
			default:
				return false
			}
		})
	}
	end := func(i int) {
		r := runs[i]
		runs = slices.Delete(runs, i, i+1)
		d.sched.Release(d.now, r.slot)
		d.Ended(d.now, r.lane)
	}
	for range 20_000 {
		switch rng.IntN(6) {
		case 0, 1:
			heads = append(heads, d.deliver([]string{"x", "y", "zz"}[rng.IntN(3)], 1+rng.IntN(20_000), time.Duration(rng.IntN(5000))*time.Millisecond))
		case 2:
			d.level(rng.Float64())
			d.Fill(d.now)
		case 3:
			if len(heads) > 0 {
				d.Expire(d.now, heads[rng.IntN(len(heads))])
			}
		case 4:
			d.Drop(d.now, fmt.Sprint(d.ids-rng.IntN(4)))
		case 5:
			if len(runs) > 0 {
				end(rng.IntN(len(runs)))
			}
		}
		collect()
		if len(heads) != len(d.heads) || len(d.heads) != len(d.reqs) || len(d.heads) > 4 {
			t.Fatalf("%d heads have no answer, %d are held with %d requests; want as many, at most 4", len(heads), len(d.heads), len(d.reqs))
		}
	}
	d.Empty(d.now, reason.Draining)
	collect()
	for len(runs) > 0 {
		end(0)
	}
	if len(heads)+len(d.lanes.running) != 0 || d.sched.View(d.now).Requests != 0 {
		t.Errorf("left behind: %d heads, lanes %v, %d in the ledger", len(heads), d.lanes.running, d.sched.View(d.now).Requests)
	}
}
