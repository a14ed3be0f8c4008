package route

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/policy"
	"penstock/reason"
)

const rulebook = `
tiers: [{name: vip}, {name: normal}, {name: batch}]
tenants:
  boss: {tier: vip, downgrade: true}
  acme: {tier: vip, downgrade: [batch]}
  plain: {tier: vip}
models:
  big: [{model: q72, prompt-up-to: 8000}, {model: long}]
rules: [{when: {tools: true}, then: {type: code}}]
reroutes:
  - {name: review, from: {model: q7, type: code}, on: 422, to: {type: review, model: judge, tier: normal}}
  - {name: bigger, from: {model: q7}, on: [context_length_exceeded, no_engine, 404], to: {model: big}}
  - {name: busy, from: {model: q7, tier: normal}, on: [server_is_overloaded], to: {model: big, pool: h200}}
  - {name: back, from: {model: q72}, on: [context_length_exceeded], to: {model: q7}}
`

func TestNext(t *testing.T) {
	p, err := policy.Parse([]byte(rulebook))
	if err != nil {
		t.Fatal(err)
	}
	in := func(tier, model string) policy.Decision {
		return policy.Decision{Tier: p.Rank(tier), Lane: lane.Key{Tier: tier, Type: "chat", Model: model, Pool: "a100", Tenant: "x"}, ModelBy: policy.ByClient}
	}
	code := in("vip", "q7")
	code.Lane.Type = "code"
	tooLong, busy, full := policy.Trouble{Class: policy.TooLong, Status: 400}, policy.Trouble{Class: policy.Saturated}, policy.Trouble{Class: policy.LaneFull}
	for _, c := range []struct {
		name, tenant string
		stop         Stop
		trip         Trip
		want         Move
		lane         string // the next one
	}{
		{name: "too long for the small model", stop: Stop{Trouble: tooLong, Class: in("normal", "q7")}, want: Reroute, lane: "normal/chat/q72//x"},
		{name: "and for the next one of the name", stop: Stop{Trouble: tooLong, Class: in("normal", "q7"), Request: &policy.Request{Prompt: 9000}}, want: Reroute, lane: "normal/chat/long//x"},
		{name: "only once", stop: Stop{Trouble: tooLong, Class: in("normal", "q72")}, trip: Trip{rerouted: true}, want: Stay, lane: "normal/chat/q72/a100/x"},
		{name: "not after a byte", stop: Stop{Trouble: tooLong, Class: in("normal", "q7"), Relayed: true}, want: Stay, lane: "normal/chat/q7/a100/x"},
		{name: "not past the deadline", stop: Stop{Trouble: tooLong, Class: in("normal", "q7"), Left: -1}, want: Stay, lane: "normal/chat/q7/a100/x"},
		{name: "a status", stop: Stop{Trouble: policy.Trouble{Status: 404}, Class: in("normal", "q7")}, want: Reroute, lane: "normal/chat/q72//x"},
		{name: "another status", stop: Stop{Trouble: policy.Trouble{Status: 400}, Class: in("normal", "q7")}, want: Stay, lane: "normal/chat/q7/a100/x"},
		{name: "a lane for review", stop: Stop{Trouble: policy.Trouble{Status: 422}, Class: code}, want: Reroute, lane: "normal/review/judge//x"},
		{name: "no lane but those", stop: Stop{Trouble: policy.Trouble{Status: 422}, Class: in("vip", "q7")}, want: Stay, lane: "vip/chat/q7/a100/x"},
		{name: "busy: the reroute goes first", tenant: "boss", stop: Stop{Trouble: busy, Class: in("normal", "q7")}, want: Reroute, lane: "normal/chat/q72/h200/x"},
		{name: "then the downgrade", tenant: "boss", stop: Stop{Trouble: busy, Class: in("normal", "q7")}, trip: Trip{rerouted: true}, want: Downgrade, lane: "batch/chat/q7/a100/x"},
		{name: "only once too", tenant: "boss", stop: Stop{Trouble: full, Class: in("normal", "q7")}, trip: Trip{downgraded: true}, want: Stay, lane: "normal/chat/q7/a100/x"},
		{name: "the tier below", tenant: "boss", stop: Stop{Trouble: full, Class: in("vip", "q7")}, want: Downgrade, lane: "normal/chat/q7/a100/x"},
		{name: "those of a list", tenant: "acme", stop: Stop{Trouble: full, Class: in("vip", "q7")}, want: Downgrade, lane: "batch/chat/q7/a100/x"},
		{name: "a list is all there are", tenant: "acme", stop: Stop{Trouble: full, Class: in("batch", "q7"), Wish: policy.MayDowngrade}, want: Stay, lane: "batch/chat/q7/a100/x"},
		{name: "not allowed", tenant: "plain", stop: Stop{Trouble: full, Class: in("vip", "q7")}, want: Stay, lane: "vip/chat/q7/a100/x"},
		{name: "the request allows it", tenant: "plain", stop: Stop{Trouble: full, Class: in("vip", "q7"), Wish: policy.MayDowngrade}, want: Downgrade, lane: "normal/chat/q7/a100/x"},
		{name: "the request forbids it", tenant: "boss", stop: Stop{Trouble: full, Class: in("vip", "q7"), Wish: policy.MayNotDowngrade}, want: Stay, lane: "vip/chat/q7/a100/x"},
		{name: "not for another trouble", tenant: "boss", stop: Stop{Trouble: policy.Trouble{Class: policy.NoEngine}, Class: in("vip", "q72")}, want: Stay, lane: "vip/chat/q72/a100/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			who, _ := p.Tenant(c.tenant)
			if c.stop.Request == nil {
				c.stop.Request = &policy.Request{}
			}
			c.stop.Request.Tenant = &who
			if c.tenant == "" {
				who.Tier = 0
			}
			c.stop.Left += time.Second
			if c.stop.Left < time.Second {
				c.stop.Left = 0
			}
			n := c.trip.Next(p, &c.stop)
			if n.Move != c.want || n.Class.Lane.String() != c.lane || n.Class.Lane.Tier != p.TierNames()[n.Class.Tier] {
				t.Errorf("%v to %v in tier %d, want %v to %s", n.Move, n.Class.Lane, n.Class.Tier, c.want, c.lane)
			}
			if moved := n.Move != Stay; c.trip.Moved() != moved {
				t.Errorf("moved: %v, want %v", c.trip.Moved(), moved)
			}
			if n.Move == Stay {
				return
			}
			if again := c.trip.Next(p, &c.stop); again.Move == n.Move {
				t.Errorf("a second %v", again.Move)
			}
		})
	}
}

// TestEnds: whatever happens, a request is moved twice at most.
func TestEnds(t *testing.T) {
	p, err := policy.Parse([]byte("tiers: [{name: a}, {name: b}, {name: c}]\ntenants: {default: {tier: a, downgrade: true}}\nreroutes:\n" +
		"  - {from: {model: x}, on: [lane_full, no_engine], to: {model: y}}\n  - {from: {model: y}, on: [lane_full, no_engine], to: {model: x}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	who, _ := p.Tenant("anybody")
	for _, class := range []policy.Class{policy.LaneFull, policy.NoEngine} {
		var trip Trip
		moves, at := 0, policy.Decision{Lane: lane.Key{Tier: "a", Model: "x"}}
		for range 100 {
			n := trip.Next(p, &Stop{Trouble: policy.Trouble{Class: class}, Class: at, Request: &policy.Request{Tenant: &who}, Left: 1})
			if at = n.Class; n.Move != Stay {
				moves++
			}
		}
		if want := map[policy.Class]int{policy.LaneFull: 2, policy.NoEngine: 1}[class]; moves != want {
			t.Errorf("%v: %d moves, want %d", class, moves, want)
		}
	}
}

func TestTrouble(t *testing.T) {
	for _, c := range []struct {
		why     reason.Reason
		status  int
		tooLong bool
		want    policy.Trouble
		ok      bool
	}{
		{reason.EngineRefused, 400, true, policy.Trouble{Class: policy.TooLong, Status: 400}, true},
		{reason.EngineRefused, 404, false, policy.Trouble{Status: 404}, true},
		{reason.EngineRefused, 0, false, policy.Trouble{}, false},
		{reason.TooLarge, 0, false, policy.Trouble{Class: policy.TooLong}, true},
		{reason.Overloaded, 0, false, policy.Trouble{Class: policy.Saturated}, true},
		{reason.TriesUsed, 0, false, policy.Trouble{Class: policy.TriesUsed}, true},
		{reason.UpstreamLost, 0, false, policy.Trouble{}, false},
		{reason.DeadlinePassed, 0, false, policy.Trouble{}, false},
		{reason.BadRequest, 0, false, policy.Trouble{}, false},
		{reason.RecordStoreAway, 0, false, policy.Trouble{}, false},
		{reason.Draining, 0, false, policy.Trouble{}, false},
		{reason.Aborted, 0, false, policy.Trouble{}, false},
	} {
		got, ok := Trouble(c.why, c.status, c.tooLong)
		if diff := cmp.Diff(c.want, got); diff != "" || ok != c.ok {
			t.Errorf("%v %d: %v (-want +got)\n%s", c.why, c.status, ok, diff)
		}
	}
}

func TestString(t *testing.T) {
	var trip Trip
	if got := trip.String(lane.Key{Tier: "a"}); got != "" {
		t.Errorf("on arrival: %q, want nothing", got)
	}
	trip.Left(lane.Key{Tier: "vip", Type: "filter", Model: "guard", Tenant: "secret"}, "passed")
	trip.Left(lane.Key{Tier: "vip", Model: "org/q 7,\r\n\"b", Pool: "h200", Tenant: "secret"}, "404")
	want := `vip/filter/guard passed, vip//org/q_7____b/h200 404, normal/chat/q72`
	if got := trip.String(lane.Key{Tier: "normal", Type: "chat", Model: "q72", Tenant: "secret"}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
