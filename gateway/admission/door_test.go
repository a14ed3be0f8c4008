package admission

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"penstock/fleet"
	"penstock/gateway/directory"
	"penstock/gateway/headers"
	"penstock/gateway/openai"
	"penstock/lane"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/registry/memory"
	"penstock/response"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDoor is a door before one live engine that serves model "q".
func newDoor(t *testing.T, change func(*Deps)) (*Door, *memory.Registry) {
	t.Helper()
	cfg := memory.DefaultConfig()
	cfg.Terminal = func(string, string, reason.Reason) []byte { return nil }
	records, err := memory.New(cfg, func(string, []byte) error { return nil }, func(string, string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := records.PutEngine(t.Context(), registry.Engine{Node: "n1", GRPC: "n1:4781", Models: []string{"q"}, State: reason.OK}); err != nil {
		t.Fatal(err)
	}
	deps := Deps{
		Directory: directory.New(records, func() []fleet.Row {
			return []fleet.Row{{Node: "n1", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, FirstToken: 50 * time.Millisecond, At: time.Now()}}
		}, nil),
		Records: records, Publish: func(context.Context, *queue.Message) error { return nil }, Reply: func(id string) string { return "mailbox " + id },
		Warn: func(call string, err error) { t.Logf("%s: %v", call, err) },
	}
	if change != nil {
		change(&deps)
	}
	d, err := New(Config{MaxDeadline: 10 * time.Minute}, deps)
	if err != nil {
		t.Fatal(err)
	}
	return d, records
}

// newBid is a request for "q" that waits 30 s for its start.
func newBid(id string) *Bid {
	return &Bid{
		ID: id, Tenant: "acme", Asked: "q", Lane: lane.Key{Tier: "default", Type: "chat", Model: "q", Tenant: "acme"}, Path: openai.ChatPath,
		Request: &openai.Request{Kind: "chat", Model: "q", Body: []byte(`{"model":"q"}`), TextBytes: 400, MaxTokens: 8, Sequences: 1}, Opened: time.Now(),
		Limits: &headers.Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}, MaxDeadline: 10 * time.Minute,
	}
}

var tenants = flag.Int("tenants", 2000, "how many tenants TestTenants lets come")

// TestTenants: however many tenants come, nothing of them stays at the door but what is
// bounded.
func TestTenants(t *testing.T) {
	d, _ := newDoor(t, nil)
	r := openai.Request{Model: "q", TextBytes: 400, Sequences: 1}
	visit := func(i int) {
		name := fmt.Sprintf("tenant-%016x", uint64(i)*0x9e3779b97f4a7c15)
		d.sends.wait(lane.Key{Tier: "default", Model: "q", Tenant: name}, 1000, time.Now())
		d.Quote(name, &r)
		d.Learn(name, &r, response.Usage{Prompt: 100, Output: 7, Known: true})
	}
	for i := range min(*tenants, mostPaced+1) { // with many, what is bounded is full
		visit(-1 - i)
	}
	before := heap()
	for i := range *tenants {
		visit(i)
	}
	grown := heap() - before
	t.Logf("%d tenants: %+d KiB on the heap", *tenants, grown>>10)
	if grown > 4<<20 { // the maps of what is bounded grow a little more
		t.Errorf("the heap grew by %d KiB over %d tenants, want 4 MiB at most", grown>>10, *tenants)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
