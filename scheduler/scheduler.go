// Package scheduler decides whether a request may start on one engine now. It is
// a function of values: no clock, IO, log, metric, error, map iteration or
// allocation. The caller serialises access to a State (agent holds a mutex) and
// passes now.
package scheduler

import (
	"fmt"
	"time"

	"penstock/reason"
	"penstock/scheduler/forecast"
	"penstock/scheduler/order"
)

// Action is what the caller does with a delivered head.
type Action uint8

// What a Verdict can tell the caller to do.
const (
	Start   Action = iota + 1 // run it: Reserve, then claim the record
	Hold                      // keep it in the ready room; capacity comes free soon
	Suspend                   // give it back to its lane for After
	Drop                      // it will never run: finish its record
)

// String is the metric label and the log attribute.
func (a Action) String() string {
	switch a {
	case Start:
		return "start"
	case Hold:
		return "hold"
	case Suspend:
		return "suspend"
	case Drop:
		return "drop"
	}
	return "none"
}

// Verdict is the decision and why.
type Verdict struct {
	Action Action
	Reason reason.Reason
	After  time.Duration // Suspend: 50 ms..5 s; Hold: the pause if the ready room is full
}

// Request is a head as the decision sees it. Times are on the caller's clock.
type Request struct {
	Hash         uint64 // of the request's id: spreads what must be spread, and names the head
	PromptTokens int    // estimated, over all sequences
	SafePrompt   int    // a count that cannot be above the longest true prompt of one sequence; 0 = none: only this may prove "too large"
	ExpectedOut  int    // expected output tokens of one sequence
	MaxTokens    int    // 0 = not limited by the client
	Sequences    int    // >= 1
	Tenant       uint64 // hash of whose it is: tenants of a tier share the engine fairly
	Tier         int    // its place in Config.Tiers; one that is not there counts as the last
	Class, Model uint64 // hashes: requests of a class (tenant and model), or else of a model, have about one output length; 0 = not known
	Opened       time.Time
	Deadline     time.Time     // zero = none
	SLOTTFT      time.Duration // 0 = Config.SLOTTFT
	SLOTTFTNamed bool          // the client named it: its own prefill is counted
	Patient      bool          // it waits until Deadline: it is never given up for being late
	SLOTPOT      time.Duration // 0 = Config.SLOTPOT
	Stream       bool          // a stream shows progress per token; a plain answer advances by step time
	Aborted      bool          // the client is gone
}

// Tier is a class of requests: order.Tier.
type Tier = order.Tier

// MostTiers is how many tiers there may be.
const MostTiers = order.MostTiers

// ValidateTiers names the first tier and field that cannot work, its value and the fix.
func ValidateTiers(tiers []Tier) error { return order.ValidateTiers(tiers) }

// Rank is the place of the tier with this name; of one that is not known, the last.
func Rank(tiers []Tier, name string) int { return order.Rank(tiers, name) }

// The counts as the arithmetic may rely on them: not negative, and too small for
// any sum to overflow.
func (r *Request) seqs() int     { return clamp(r.Sequences, 1, maxSeqs) }
func (r *Request) expected() int { return r.seqs() * clamp(r.ExpectedOut, 0, maxTokens/maxSeqs) }

// Sample is one good reading of the engine's page. The scraper makes it; a page
// that is not good makes none.
type Sample struct {
	At          time.Time     // when the page had been read
	Asked       time.Time     // when the page was asked for: what showed then is in it; zero = not known, see Config.Visible
	KV          float64       // KV cache usage 0..1, max over engines of one server
	Running     int           // summed over engines
	Waiting     int           // summed over engines
	KVTokens    int           // usable KV tokens K, summed over DP ranks; 0 = not exported
	Ranks       int           // DP ranks seen, >= 1
	Preemptions float64       // counter, late; see DESIGN.md
	Tokens      float64       // prompt + generation token counters
	Steps       float64       // engine step counter; 0 = not exported
	StepTime    time.Duration // mean since the last sample; 0 = no decode in the window
	Asleep      bool
	Restarted   bool // counters went backwards: the engine's process is new
}

// Peer is another engine that could take the request, filled from its row.
type Peer struct {
	CanStart bool // it says it could start a request of this model now
	Freeness int  // KV tokens it can still take
	At       time.Time
}

// Slot names a reservation in the ledger. The zero Slot is none.
type Slot uint64

// Law is what says how much an engine takes.
type Law uint8

// The laws. Under both the watermarks are the net.
const (
	Forecast  Law = iota // what runs and the request will fit until they end, by what is learned of their lengths and of step times
	Watermark            // KV usage below fixed marks
)

// String is the name in the configuration.
func (l Law) String() string {
	if l == Watermark {
		return "watermark"
	}
	return "forecast"
}

// ParseLaw is the reverse of String; the error says what there is.
func ParseLaw(name string) (Law, error) {
	for _, l := range []Law{Forecast, Watermark} {
		if name == l.String() {
			return l, nil
		}
	}
	return 0, fmt.Errorf("%q: want %s or %s", name, Forecast, Watermark)
}

// Config is the law's numbers. KV figures are shares of the engine's KV tokens. Under
// Forecast, KVStart, KVStop and KVReopen hold only while those are not known.
type Config struct {
	Law        Law
	Poll       time.Duration // how often the page is read; fresh = 3 of these
	Visible    time.Duration // how long after its first token a request shows on the page (measured: 4 ms)
	KVStart    float64       // below: start
	KVStop     float64       // from here: start nothing
	KVReopen   float64       // once stopped, start again below
	Margin     float64       // kept free on top while the sample is stale, and per unknown spread over DP ranks
	WaitSome   int           // sequences waiting in the engine from which only what is safe starts
	WaitMax    int           // from here: start nothing; own sequences without a first token never exceed it
	ColdTokens int           // prompt tokens pending until the engine's speed is known: one prefill chunk
	ColdSeqs   int           // sequences pending until then
	SLOTTFT    time.Duration // for requests that carry none
	SLOTPOT    time.Duration // mean time per output token, for requests that carry none
	Ready      int           // heads of the first so many ranks are held in the ready room; 0 = of any
	Tiers      []Tier        // first goes first; none = one tier, "default"
}

// DefaultConfig is the law of DESIGN.md.
func DefaultConfig() Config {
	return Config{
		Law:  Forecast,
		Poll: 50 * time.Millisecond, Visible: 10 * time.Millisecond,
		KVStart: 0.80, KVStop: 0.92, KVReopen: 0.75, Margin: 0.05,
		WaitSome: 5, WaitMax: 20, ColdTokens: 2048, ColdSeqs: 16,
		SLOTTFT: 2 * time.Second, SLOTPOT: 100 * time.Millisecond,
	}
}

// Validate names the first field that is out of range, its value and the remedy.
func (c Config) Validate() error {
	switch {
	case c.Poll < time.Millisecond || c.Poll > blindAfter/4:
		return fmt.Errorf("scheduler: Poll is %s; set 1ms to %s", c.Poll, blindAfter/4)
	case c.Visible < 0 || c.Visible > blindAfter:
		return fmt.Errorf("scheduler: Visible is %s; set 0 to %s", c.Visible, blindAfter)
	case !(c.KVStart > 0 && c.KVStart < c.KVStop):
		return fmt.Errorf("scheduler: KVStart is %g; set it above 0 and below KVStop (%g)", c.KVStart, c.KVStop)
	case !(c.KVStop <= 1):
		return fmt.Errorf("scheduler: KVStop is %g; set at most 1", c.KVStop)
	case !(c.KVReopen > 0 && c.KVReopen <= c.KVStart):
		return fmt.Errorf("scheduler: KVReopen is %g; set it above 0 and at most KVStart (%g)", c.KVReopen, c.KVStart)
	case !(c.Margin >= 0 && c.Margin < c.KVReopen/2):
		return fmt.Errorf("scheduler: Margin is %g; set 0 to below half of KVReopen (%g)", c.Margin, c.KVReopen)
	case c.WaitSome < 1 || c.WaitSome > c.WaitMax:
		return fmt.Errorf("scheduler: WaitSome is %d; set 1 to WaitMax (%d)", c.WaitSome, c.WaitMax)
	case c.ColdTokens < 1:
		return fmt.Errorf("scheduler: ColdTokens is %d; set at least 1", c.ColdTokens)
	case c.ColdSeqs < 1 || c.ColdSeqs > c.WaitMax:
		return fmt.Errorf("scheduler: ColdSeqs is %d; set 1 to WaitMax (%d)", c.ColdSeqs, c.WaitMax)
	case c.SLOTTFT <= 0:
		return fmt.Errorf("scheduler: SLOTTFT is %s; set it above 0", c.SLOTTFT)
	case c.SLOTPOT <= 0:
		return fmt.Errorf("scheduler: SLOTPOT is %s; set it above 0", c.SLOTPOT)
	case c.Ready < 0:
		return fmt.Errorf("scheduler: Ready is %d; set 0 (heads of any rank) or more", c.Ready)
	}
	return order.ValidateTiers(c.Tiers)
}

// State is all that is known about one engine. It is not safe for concurrent use.
// Times inside are offsets from start.
type State struct {
	cfg   Config
	start time.Time

	ledger
	speed     forecast.Speed
	flow      flow
	prompts   float64 // tokens of a prompt, EWMA over what was started
	works     float64 // the same with the expected output
	waits     float64 // seconds they had waited by the time their prefill began, the same way
	lengths   forecast.Lengths
	peak      forecast.Peak
	gauge     forecast.Gauge
	estimates forecast.Estimates
	steps     forecast.Steps
	queue     order.Queue

	sample   Sample
	sampled  time.Duration // of the last good sample
	have     bool          // there is a sample
	step     time.Duration // EWMA of step time; 0 = not known
	moved    time.Duration // last time the engine showed any movement
	seats    int           // sequences the engine runs at most; 0 = not known
	closed   bool          // KVStop was reached and KVReopen not yet seen
	draining bool
	maxLen   int // max_model_len; 0 = not known

	probeAt    time.Duration // no probe before this
	probeEvery time.Duration // pause after the next probe
	probing    bool          // the last Start was a probe, not reserved yet

	peers []Peer
}

// SetPoll tells how often samples are taken now: a scraper slows down where the
// engine's page is dear. It is clamped to what Config.Poll may be.
func (s *State) SetPoll(d time.Duration) { s.cfg.Poll = min(max(d, time.Millisecond), blindAfter/4) }

// New makes the state of an engine of which nothing is known yet.
func New(cfg Config, start time.Time) (*State, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &State{cfg: cfg, start: start, probeEvery: probeFirst, lengths: forecast.NewLengths(), gauge: forecast.NewGauge(), estimates: forecast.NewEstimates(), queue: order.New(cfg.Tiers, cfg.SLOTTFT, cfg.SLOTPOT)}
	s.slots = make([]slot, 0, firstSlots)
	s.free = make([]uint32, 0, firstSlots)
	return s, nil
}

// SetDraining makes every Decide suspend; what runs goes on.
func (s *State) SetDraining(on bool) { s.draining = on }

// SetMaxModelLen tells the engine's context length in tokens; 0 = not known.
func (s *State) SetMaxModelLen(tokens int) { s.maxLen = max(tokens, 0) }

// SetPeers replaces the other engines that serve the same models. The slice is
// copied; it allocates only when there are more than ever before.
func (s *State) SetPeers(peers []Peer) { s.peers = append(s.peers[:0], peers...) }

// SetTiers changes the tiers while requests run, for tiers that ValidateTiers has
// passed; none = one, "default". See order.Queue.
func (s *State) SetTiers(tiers []Tier) {
	s.cfg.Tiers = tiers
	s.queue.SetTiers(tiers, func(yield func(*order.Bill) bool) {
		for i := range s.slots {
			if !yield(&s.slots[i].bill) {
				return
			}
		}
	})
}

// SetBacklog tells how many requests of a tier wait for the engine's models, in all
// lanes. The caller reads it about once a second.
func (s *State) SetBacklog(tier, requests int) { s.queue.SetBacklog(tier, requests) }

// prompt is a request's prompt tokens as the engine will count them.
func (s *State) prompt(r *Request) int {
	return s.estimates.Tokens(clamp(r.PromptTokens, 0, maxTokens))
}

// since turns a time of the caller into the state's own.
func (s *State) since(t time.Time) time.Duration { return t.Sub(s.start) }
