// Package reason is the closed list of why: every verdict, refusal, outcome and
// engine state names exactly one Reason. Its String is the metric label, the log
// attribute and the value of the x-penstock-reason header, so a name, once
// released, does not change.
package reason

// Reason says why something happened. The zero value is "none": not set.
type Reason uint8

// The reasons, by what they explain.
const (
	None Reason = iota // not set

	// Why a request may start.

	OK    // the gate is open for it
	Probe // a closed gate over frozen gauges lets one real request through

	// Why a head waits: the engine is full.

	KVHigh      // KV usage reached the upper watermark and has not fallen below the reopen mark
	KVBand      // KV usage between the two watermarks; this id drew "wait" for this second
	KVCredit    // gauge plus what was started but does not show yet leaves no room
	KVForecast  // what runs and this request would not fit until they end
	StepsSlow   // with it the engine's steps would be longer than slo_tpot allows
	WaitingHigh // too many requests wait inside the engine
	SeatsFull   // as many run as the engine runs at most, its max_num_seqs
	WaitingSome // some wait inside the engine and this one is not safe beside them
	PrefillBusy // prompts already sent would push its first token past slo_ttft
	Cold        // the engine's speed is not known yet and the cold-start allowance is used
	Late        // it has missed slo_ttft already; heads still in time go first
	TierCeiling // its tier holds as much of the engine as it may
	TierTurn    // a tier before its own waits for room, or would wait for this one's prompt
	TenantTurn  // a tenant that has had far less waits for room
	PeerFree    // another engine can start it now
	RoomFull    // the ready room has no place for another head
	LaneLimit   // as many of its lane run on this engine as the policy lets

	// Why a head waits or is refused: the engine cannot be judged or used.

	Stale    // the last good sample is older than three polls
	Blind    // no good sample for a second
	Stuck    // work exists and nothing moves
	Asleep   // the engine sleeps or is paused
	Draining // this node or gateway is going away
	Starting // no good sample since start
	GPULost  // a GPU of the engine has fallen off the bus or needs a reset
	GPUFault // the driver reported a fatal error (XID) on a GPU of the engine

	// Why a delivery is not started.

	Aborted         // the client went away
	DeadlinePassed  // the start deadline passed
	TooLarge        // it can never fit this engine
	AlreadyDone     // the record is finished
	LiveOwner       // another attempt runs it
	TriesUsed       // started too often
	Paced           // the lane's own pace in starts per second
	Orphan          // the gateway that waits for it is gone
	RecordStoreAway // the record cannot be reached
	BrokerAway      // the lanes cannot be reached

	// Outcomes of a request that was started.

	Finished      // complete answer
	EngineRefused // the engine's answer was a 4xx
	EngineBusy    // the engine's own cap answered 503
	EngineDown    // connection refused, 5xx, engine dead
	EngineDrained // the engine is shutting down
	Stalled       // no byte for the stall limit
	UpstreamLost  // broke after the first byte
	ClientSlow    // the client did not read its answer
	ClientGone    // the client closed the connection

	// Why the gateway refuses.

	RateLimited  // the caller's own limit
	BudgetSpent  // the caller's budget is used up
	Overloaded   // predicted start is past the request's limit
	LaneFull     // the lane's bound in requests or bytes
	NoEngine     // no live engine for the model
	BadRequest   // malformed body or header
	BodyTooLarge // request body above the limit
	NoKey        // no API key, or an unknown one
	Forbidden    // the key may not do this
	UnknownModel // no engine has ever served it
	NotFound     // no such route or method

	// Why what waits in a lane does not start although an engine takes work: for who
	// asks, no verdict and no label.

	LaneWidth // as many of the lane run as may at once

	// Filtered: a filter of the policy read the request and stopped it, or could not read it.
	Filtered

	end
)

var names = [end]string{
	None: "none", OK: "ok", Probe: "probe",
	KVHigh: "kv_high", KVBand: "kv_band", KVCredit: "kv_credit", KVForecast: "kv_forecast", StepsSlow: "steps_slow", WaitingHigh: "waiting_high", SeatsFull: "seats_full",
	WaitingSome: "waiting", PrefillBusy: "prefill_busy", Cold: "cold_start", Late: "late", TierCeiling: "tier_ceiling", TierTurn: "tier_turn", TenantTurn: "tenant_turn", PeerFree: "peer_free", RoomFull: "room_full", LaneLimit: "lane_concurrency",
	Stale: "stale", Blind: "blind", Stuck: "stuck", Asleep: "asleep", Draining: "draining", Starting: "starting",
	GPULost: "gpu_lost", GPUFault: "gpu_fault",
	Aborted: "aborted", DeadlinePassed: "queue_deadline_exceeded", TooLarge: "too_large", AlreadyDone: "already_done",
	LiveOwner: "live_owner", TriesUsed: "tries_used", Paced: "lane_pace", Orphan: "orphan", RecordStoreAway: "record_store_away", BrokerAway: "broker_away",
	Finished: "finished", EngineRefused: "engine_refused", EngineBusy: "engine_busy", EngineDown: "engine_down", EngineDrained: "engine_draining",
	Stalled: "stalled", UpstreamLost: "upstream_lost", ClientSlow: "client_slow", ClientGone: "client_gone",
	RateLimited: "rate_limit_exceeded", BudgetSpent: "insufficient_quota", Overloaded: "server_is_overloaded", LaneFull: "lane_full",
	NoEngine: "no_engine", BadRequest: "invalid_request", BodyTooLarge: "body_too_large", NoKey: "invalid_api_key", Forbidden: "forbidden",
	UnknownModel: "model_not_found", NotFound: "not_found", LaneWidth: "lane_width",
	Filtered: "content_filter",
}

// String is the stable name: metric label, log attribute, header value.
func (r Reason) String() string {
	if r >= end {
		return "unknown"
	}
	return names[r]
}

// MarshalText writes the name, in /debug/state for one.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// All returns every Reason but None, in order, for creating metric labels at start.
func All() []Reason {
	all := make([]Reason, 0, end-1)
	for r := None + 1; r < end; r++ {
		all = append(all, r)
	}
	return all
}
