package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"penstock/load"
)

// tenants send at once; nothing but their API keys tells them apart.
var tenants = []string{"abuser", "vip", "normal-1", "normal-2"}

func key(tenant string) string { return "key-of-" + tenant }

func printKeys() {
	for _, t := range tenants {
		fmt.Printf("%s: %s\n", t, key(t))
	}
}

// runTenants prints what came of the requests of all but the abuser.
func (o *options) runTenants(shapes []load.Shape) error {
	by, well, err := o.together(context.Background(), shapes)
	if err != nil {
		return err
	}
	least, tokens := 1.0, 0.0
	for t, s := range by {
		tokens += s.TokenGoodput
		if t != "abuser" {
			least = min(least, share(s))
		}
	}
	abuser := by["abuser"]
	return o.write([]figure{
		{"others: sent req/s", "%.2f", sent(well), false},
		{"good req/s", "%.2f", well.Goodput, true},
		{"good", "%.3f", share(well), true},
		{"least good tenant", "%.3f", least, false},
		{"TTFT p50", "%.2f s", well.TTFTp50.Seconds(), false},
		{"p99", "%.2f s", well.TTFTp99.Seconds(), false},
		{"abuser: sent req/s", "%.2f", sent(abuser), false},
		{"good req/s", "%.2f", abuser.Goodput, false},
		{"all: good tok/s", "%.0f", tokens, false},
	}, "others: "+note(well)+"; abuser: "+note(abuser))
}

// together lets all tenants send and sums up what came of each one's requests, and of
// those of all but the abuser.
func (o *options) together(ctx context.Context, shapes []load.Shape) (by map[string]load.Summary, well load.Summary, err error) {
	outcomes := make([][]load.Outcome, len(tenants))
	group, ctx := errgroup.WithContext(ctx)
	for i, t := range tenants {
		rate := o.rate
		if t == "abuser" {
			rate *= o.times
		}
		cfg := o.config(o.arrivals(shapes, rate, o.seed*uint64(len(tenants))+uint64(i)))
		cfg.APIKey, cfg.Seed = key(t), o.seed*uint64(len(tenants))+uint64(i)
		group.Go(func() (err error) {
			outcomes[i], err = load.Run(ctx, cfg)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, well, err
	}
	var others []load.Outcome
	by = map[string]load.Summary{}
	for i, t := range tenants {
		by[t] = load.Between(outcomes[i], o.warm, o.warm+o.span)
		if t != "abuser" {
			others = append(others, outcomes[i]...)
		}
	}
	well = load.Between(others, o.warm, o.warm+o.span)
	return by, well, nil
}

func share(s load.Summary) float64 { return float64(s.Good) / float64(max(s.Requests, 1)) }

func sent(s load.Summary) float64 {
	return float64(s.Requests) / max(s.Span, time.Nanosecond).Seconds()
}
