package neighbours

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/fleet"
	"penstock/reason"
)

// TestGatewaysGossip: an agent hears which policy a gateway goes by, and takes it for no
// engine.
func TestGatewaysGossip(t *testing.T) {
	a, _ := member(t, "a", "", true)
	f := pflag.NewFlagSet("g", pflag.ContinueOnError)
	Flags(f, "127.0.0.1:0")
	if err := f.Parse([]string{"--join", a.listen.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	opts, err := Read(f, "gateway@g")
	if err != nil {
		t.Fatal(err)
	}
	self := func(now time.Time) fleet.Row {
		return fleet.Row{Node: "gateway@g", Gateway: true, State: reason.OK, Policy: 0xa1b2c3d4, At: now}
	}
	g, err := New(opts, self, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	within(t, 10*time.Second, "the gateway at the agent", func() bool { return len(a.Gateways()) == 1 })
	if row := a.Gateways()[0]; row.Node != "gateway@g" || fleet.PolicyText(row.Policy) != "a1b2c3d4" {
		t.Errorf("row %+v", row)
	}
	within(t, 10*time.Second, "the agent at the gateway", func() bool { return len(g.Rows()) == 1 })
	if rows := a.Rows(); len(rows) != 1 || rows[0].Gateway {
		t.Errorf("rows %+v, want the agent's own", rows)
	}
}
