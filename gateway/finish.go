package gateway

import (
	"log/slog"
	"strings"
	"time"

	"penstock/gateway/journal"
	"penstock/gateway/outcome"
	"penstock/reason"
	"penstock/response"
)

// finish accounts for a request's one outcome: metrics, what its usage teaches,
// and its log line, which never has a byte of the prompt.
func (x *exchange) finish(status int, why reason.Reason, used response.Usage) {
	g, v, now := x.g, &x.seen, time.Now()
	r := outcome.Request{
		Tier: x.class.Lane.Tier, Status: status, Reason: why, Stream: x.request.Stream, Tokens: v.Chunks,
		Queued: v.InQueue, First: v.First, Latest: v.Latest, Arrived: x.arrived, Ended: now,
	}
	if x.place.Known {
		r.Model = x.request.Model
	}
	if used.Known {
		r.Tokens = used.Output / max(x.request.Sequences, 1)
	}
	end := g.metrics.Finished(&r)
	if end != outcome.Succeeded || x.trip.Moved() {
		x.remember(now, status, end, why)
	}
	if why == reason.Finished && used.Known {
		missed := g.door.Learn(x.who.Name, &x.request, used)
		g.metrics.Missed(missed.Prompt, missed.Output)
	}
	var ttft time.Duration
	if !v.First.IsZero() {
		ttft = v.First.Sub(x.arrived)
	}
	level := slog.LevelDebug // refusals at the door can be many
	if x.queued {
		level = slog.LevelInfo
	}
	ctx := x.r.Context()
	if !g.deps.Log.Enabled(ctx, level) {
		return
	}
	var way slog.Attr // an empty one is left out
	if x.trip.Moved() {
		way = slog.String("route", x.trip.String(x.onward.lane))
	}
	g.deps.Log.LogAttrs(ctx, level, "request finished",
		slog.String("id", x.id), slog.String("label", x.label), slog.String("tenant", x.who.Name),
		slog.String("lane", x.class.Lane.String()), slog.String("node", v.Node), slog.Int("attempts", v.Tries),
		slog.Int64("queue_ms", v.InQueue.Milliseconds()), slog.Int64("ttft_ms", ttft.Milliseconds()),
		slog.Int64("total_ms", now.Sub(x.arrived).Milliseconds()),
		slog.Int("tokens_in", used.Prompt), slog.Int("tokens_out", used.Output),
		slog.Int("status", status), slog.String("outcome", string(end)), slog.String("reason", why.String()), way)
}

// remember writes a request that got no whole answer, or went through several lanes, into
// the journal.
func (x *exchange) remember(now time.Time, status int, end outcome.Outcome, why reason.Reason) {
	f := journal.Entry{
		At: now, ID: x.id, Tenant: x.who.Name, Model: x.request.Model, Node: x.seen.Node, Attempts: x.seen.Tries,
		Status: status, Outcome: string(end), Reason: why, Took: now.Sub(x.arrived).Seconds(), Route: x.trip.String(x.onward.lane),
	}
	if x.label != x.id {
		f.Label = strings.Clone(x.label) // it may be the start of a longer header
	}
	if t := x.told; t != nil {
		f.Ahead, f.Wait, f.Limit, f.Detail = t.Ahead, t.Wait.Seconds(), t.Limit.Seconds(), t.Detail
	}
	x.g.journal.Add(&f, x.queued, end == outcome.Succeeded)
}
