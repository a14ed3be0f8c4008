package stack

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/agent"
	"penstock/agent/control"
	"penstock/cmd/penstock/neighbours"
	"penstock/fleet"
	"penstock/gateway"
	"penstock/gateway/direct"
	"penstock/lane"
	queuememory "penstock/queue/memory"
	registrymemory "penstock/registry/memory"
	"penstock/response"
	responsememory "penstock/response/memory"
	"penstock/vllm/vllmtest"
)

// TestDirectAbort: a client leaves, the record store tells nobody and there is no
// gossip; the gateway finds the agent through the engine directory and the engine is
// free before the agent's next renewal could say so.
func TestDirectAbort(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
	log, bus := slog.New(slog.DiscardHandler), responsememory.New()
	lanes, err := queuememory.New(queuememory.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	stored := registrymemory.DefaultConfig()
	stored.Terminal = response.Terminal
	records, err := registrymemory.New(stored, bus.Append, func(string, string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	ls, err := listenAll(listenerFlag{"--listen", "127.0.0.1:0"}, listenerFlag{"--grpc", "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := agent.DefaultConfig()
	cfg.Node, cfg.GRPC, cfg.Grace = "n1", announced(ls[1].Addr().String(), &neighbours.Options{}), 0
	cfg.SetEngine(e.URL())
	node, err := agent.New(cfg, agent.Deps{
		Records: records, Directory: records, Consumer: lanes.Consumer("n1"), Append: bus.Append,
		Peers: (*neighbours.Neighbours)(nil).Rows, Metrics: prometheus.NewRegistry(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	served, err := control.New(control.Config{}, control.Deps{
		Agents: []control.Agent{node}, Engines: records.Engines, Peers: func() []fleet.Row { return nil }, Lookup: records.Lookup, Backlog: records.Backlog, Longest: records.Longest, Limits: func(lane.Key) (int, float64) { return 0, 0 }, Metrics: prometheus.NewRegistry(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	aborts, err := direct.New(direct.DefaultConfig(), log, metrics)
	if err != nil {
		t.Fatal(err)
	}
	door, err := gateway.New(gateway.DefaultConfig(), gateway.Deps{
		Records: records, Directory: records, Publish: lanes.Publish, Discard: lanes.Discard, OpenMailbox: bus.Open,
		Direct: aborts.Abort, Metrics: metrics, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- inOrder(ctx, []part{func(ctx context.Context) error { return door.Serve(ctx, ls[0]) }}, []part{node.Run},
			[]part{records.Run, aborts.Run, func(ctx context.Context) error { return served.Serve(ctx, ls[1]) }})
	}()
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the end: %v", err)
		}
	})
	eventually(t, "the engine is ready", func() bool { return node.Health().Ready })

	long := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":900,"ignore_eos":true,"temperature":0,"stream":true}`, strings.Repeat("x", 20))
	resp, err := client.Post("http://"+ls[0].Addr().String()+"/v1/completions", "application/json", strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("stream: status %d, %q, %v", resp.StatusCode, line, err)
	}
	left := time.Now()
	_ = resp.Body.Close()
	e.WaitFor("the abort", func() bool { return e.Aborts() == 1 && e.InFlight() == 0 })
	if took := time.Since(left); took > time.Second {
		t.Errorf("the engine was free after %v, want less than 1 s", took)
	}
	want := "# HELP penstock_direct_aborts_total Aborts told to the agent that runs the request, by what became of them.\n# TYPE penstock_direct_aborts_total counter\n"
	for _, o := range []string{"denied", "dropped", "failed", "no_address", "no_cert", "not_there", "stopped", "timeout"} {
		n := "0"
		if o == "stopped" {
			n = "1"
		}
		want += `penstock_direct_aborts_total{outcome="` + o + `"} ` + n + "\n"
	}
	eventually(t, "one direct abort, which stopped it", func() bool {
		return testutil.GatherAndCompare(metrics, strings.NewReader(want), "penstock_direct_aborts_total") == nil
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	const limit = 15 * time.Second
	for end := time.Now().Add(limit); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// TestAnnounced: what the engine directory names as the address of gRPC.
func TestAnnounced(t *testing.T) {
	route := "" // without a default route there is none
	if c, err := net.Dial("udp", "192.0.2.1:9"); err == nil {
		host, _, _ := net.SplitHostPort(c.LocalAddr().String())
		route = net.JoinHostPort(host, "4781")
		_ = c.Close()
	}
	for _, tc := range []struct{ listen, gossip, advertise, want string }{
		{"10.0.0.7:4781", "0.0.0.0:4783", "10.0.0.8", "10.0.0.7:4781"},
		{"gpu7:4781", "", "", "gpu7:4781"},
		{"127.0.0.1:4781", "127.0.0.1:4783", "", "127.0.0.1:4781"},
		{"127.0.0.1:4781", "", "", "127.0.0.1:4781"},
		{"127.0.0.1:4781", "10.0.0.8:4783", "", ""},
		{"127.0.0.1:4781", ":4783", "", ""},
		{"127.0.0.1:4781", "0.0.0.0:4783", "127.0.0.1:4783", "127.0.0.1:4781"},
		{"0.0.0.0:4781", "0.0.0.0:4783", "10.0.0.8:5000", "10.0.0.8:4781"},
		{"[::]:4781", "[::]:4783", "fd00::8", "[fd00::8]:4781"},
		{":4781", "10.0.0.8:4783", "", "10.0.0.8:4781"},
		{"0.0.0.0:4781", "0.0.0.0:4783", "", route},
		{"0.0.0.0:4781", "", "", route},
		{"0.0.0.0:4781", "127.0.0.1:4783", "", route},
	} {
		o := &neighbours.Options{Address: tc.gossip}
		o.Gossip.Advertise = tc.advertise
		if got := announced(tc.listen, o); got != tc.want {
			t.Errorf("--grpc %s --gossip %q --gossip-advertise %q: got %q, want %q", tc.listen, tc.gossip, tc.advertise, got, tc.want)
		}
	}
}
