package proxy

import (
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/queue/rocketmq/proxy/proxytest"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{true, false} {
		p := proxytest.New(t, proxytest.Faults{Unordered: !ordered, Quota: 2000})
		cfg := DefaultConfig()
		cfg.Endpoint, cfg.AccessKey, cfg.SecretKey = p.Addr, "key", "secret"
		got, err := Inspect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := Report{
			Route: Answer{Code: "OK"}, Types: []string{"LITE"}, Queues: 1, Brokers: []string{"b"}, Addresses: []string{p.Addr},
			Group: Answer{Code: "OK"}, Ordered: ordered, Batch: 32, Quota: 2000, Bind: Answer{Code: "OK"},
		}
		if ordered {
			want.Attempts = 17
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ordered %t: report (-want +got):\n%s", ordered, diff)
		}
		if p.Count("PARTIAL_ADD") != 1 || p.Count("PARTIAL_REMOVE") != 1 || p.Count("COMPLETE_ADD") != 0 || p.Count("send") != 0 {
			t.Errorf("it added %d, removed %d, replaced %d, sent %d; want one added and removed", p.Count("PARTIAL_ADD"), p.Count("PARTIAL_REMOVE"), p.Count("COMPLETE_ADD"), p.Count("send"))
		}
	}
}

// TestInspectAway: nothing there is an answer in the report, soon.
func TestInspectAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	cfg := DefaultConfig()
	cfg.Endpoint = l.Addr().String()
	from := time.Now()
	r, err := Inspect(t.Context(), cfg)
	if err != nil || r.Route.OK() || r.Route.Text == "" || time.Since(from) > 5*time.Second {
		t.Errorf("Inspect = %+v, %v after %v; want a text and no error", r, err, time.Since(from))
	}
	cfg.Topic = ""
	if _, err := Inspect(t.Context(), cfg); err == nil {
		t.Error("Inspect without a topic: no error")
	}
}
