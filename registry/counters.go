package registry

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/quota"
)

// QuotaMetrics show what this process's calls of a store took from limits and settled;
// the sum over all processes is the fleet's.
func QuotaMetrics(totals func() quota.Totals) []prometheus.Collector {
	counter := func(name, help string, read func(quota.Totals) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read(totals())) })
	}
	return []prometheus.Collector{
		counter("penstock_quota_reserved_tokens_total", "Expected tokens taken from limits by requests let in.", func(t quota.Totals) int64 { return t.Reserved }),
		counter("penstock_quota_settled_tokens_total", "Tokens that requests with limits were charged with at their end.", func(t quota.Totals) int64 { return t.Settled }),
		counter("penstock_quota_refunded_tokens_total", "Tokens that were reserved and not used, given back at a request's end.", func(t quota.Totals) int64 { return t.Refunded }),
	}
}
