package sim

import (
	"slices"
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/traces"
	"penstock/sim/world"
)

// What is good, and what penstock is told to keep to: a first token in time, a mean time
// per token, and no longer pause between two.
const (
	sloTTFT = 2 * time.Second
	sloTPOT = 100 * time.Millisecond
	sloGap  = time.Second
)

// Figures is what became of the requests that came within the measured span. A
// request is good once, if one of its attempts has its first token within 2 s of
// being sent, a mean of at most 100 ms per token and no pause above 1 s.
type Figures struct {
	Goodput      float64        `json:"goodput"`       // good requests per second
	Attainment   float64        `json:"attainment"`    // good ones of all
	TokenGoodput float64        `json:"token_goodput"` // their tokens per second, prompt and output
	TTFTp50      float64        `json:"ttft_p50"`      // seconds, of those that had a first token
	TTFTp99      float64        `json:"ttft_p99"`
	GapP99       float64        `json:"gap_p99"` // seconds, each request's longest pause
	Preempted    float64        `json:"preempt_per_1k"`
	Recomputed   float64        `json:"recomputed_ratio"`          // of all tokens computed
	Refused      float64        `json:"refused"`                   // share that got no token because it was refused
	Lost         float64        `json:"lost"`                      // share that got none because its client went away
	KV           float64        `json:"kv"`                        // mean usage of the KV cache
	GoodputOwn   float64        `json:"goodput_own"`               // goodput where 2 s plus the prompt's own prefill on an idle engine are in time
	TokensOwn    float64        `json:"token_goodput_own"`         // the tokens of those, per second
	Quartiles    [4]float64     `json:"quartiles"`                 // attainment so measured, by prompt length, shortest first
	Even         float64        `json:"quartile_ratio"`            // the worst of them over the best
	Recover      *float64       `json:"recover_seconds,omitempty"` // after a burst, see recovery
	Tenants      []float64      `json:"tenants,omitempty"`         // goodput of each
	Low          *LowTier       `json:"low_tier,omitempty"`
	Fairness     *Fairness      `json:"fairness,omitempty"` // between tenants
	Wasted       float64        `json:"wasted_tokens"`      // of all tokens computed or found, those of attempts that were not good
	Hits         float64        `json:"prefix_hits"`        // of all tokens needed, those found in the prefix cache
	NotGood      NotGood        `json:"not_good"`           // why requests that an engine took were not good, over all shifts
	Verdicts     map[string]int `json:"verdicts,omitempty"` // what the scheduler told heads, over all shifts
}

// NotGood counts requests that an engine took and that were not good, by what was
// first wrong with their last attempt there.
type NotGood struct {
	Left  int `json:"left"`  // its client went away without a first token
	Late  int `json:"late"`  // first token after more than 2 s
	Slow  int `json:"slow"`  // more than 100 ms per token in the mean
	Pause int `json:"pause"` // a pause above 1 s
}

func (n *NotGood) add(v *world.Visit) {
	switch {
	case v.Phase == world.Failed:
		n.Left++
	case v.First == 0 || v.First-v.Sent > sloTTFT:
		n.Late++
	case v.PerToken() > sloTPOT:
		n.Slow++
	default:
		n.Pause++
	}
}

// tally counts what happens in a world.
type tally struct {
	w          *world.World
	tenants    int
	tiers      []scheduler.Tier // none for one; else tenant i is of tier i
	width      int              // lines of a lane
	warm, span time.Duration
	verdicts   map[string]int
	service    [][]float64    // weighed tokens of each tenant in each backlogWindow; empty for one tenant
	before     []engine.Stats // at the end of warm
	usage      float64        // sum of the KV usage on the pages read since then
	pages      int
}

// newTally hears of what happens in a world that has not begun.
func newTally(w *world.World, c *Config) *tally {
	t := &tally{w: w, tenants: c.Workload.Tenants, tiers: tiersOf(c.Workload), width: c.Width, warm: c.Warm, span: c.Span, verdicts: map[string]int{}}
	if t.tenants > 1 {
		t.service = make([][]float64, t.tenants)
		for i := range t.service {
			t.service[i] = make([]float64, (c.Span+backlogWindow-1)/backlogWindow)
		}
	}
	w.OnToken, w.OnPage = t.served, t.page
	w.At(t.warm, func() { t.before = w.Stats() })
	return t
}

// page is one that was read.
func (t *tally) page(kv float64) {
	if t.w.Now > t.warm {
		t.usage += kv
		t.pages++
	}
}

func (t *tally) told(v scheduler.Verdict) { t.verdicts[v.Action.String()+" "+v.Reason.String()]++ }

// judge says whether an attempt is good; one that runs still, by its tokens so far.
func judge(v *world.Visit, now, ttft time.Duration) bool {
	if v.First == 0 || v.Phase == world.Failed || v.First-v.Sent > ttft {
		return false
	}
	gap := v.Gap
	if v.Phase == world.Inside {
		gap = max(gap, now-v.Last)
	}
	return gap <= sloGap && v.PerToken() <= sloTPOT
}

// unloaded is how long a prompt takes on an idle engine.
func unloaded(c *engine.Config, prompt int) time.Duration {
	steps := (prompt + c.MaxBatchedTokens - 1) / c.MaxBatchedTokens
	return time.Duration(steps)*c.Base + time.Duration(prompt)*c.PerPrefillToken
}

// outcome is what became of one request.
type outcome struct {
	traces.Arrival
	good, own, served, refused bool // own: good where the own prefill is not counted
	tokens, ownTokens          int
	ran                        *world.Visit // its last attempt that an engine took
	wasted                     int          // tokens of its attempts that were answered and not good
}

// outcomes are those of the measured span, and the delays that their attempts saw.
func (t *tally) outcomes(arrivals []traces.Arrival) (all []outcome, ttft, gaps []time.Duration) {
	first, past := 0, 0 // arrivals are in order
	for i := range arrivals {
		if arrivals[i].At < t.warm {
			first = i + 1
		}
		if arrivals[i].At < t.warm+t.span {
			past = i + 1
		}
	}
	all = make([]outcome, past-first)
	for i := range all {
		all[i].Arrival = arrivals[first+i]
	}
	for _, v := range t.w.Visits {
		if v.Origin < first || v.Origin >= past || v.Low {
			continue
		}
		o := &all[v.Origin-first]
		if v.Ran {
			o.ran = v
		}
		o.refused = o.refused || v.Refused
		good := judge(v, t.w.Now, sloTTFT)
		if v.First > 0 {
			o.served = true
			ttft, gaps = append(ttft, v.First-v.Sent), append(gaps, v.Gap)
			if !good {
				o.wasted += v.Prompt + v.Out
			}
		}
		if good {
			o.good, o.tokens = true, v.Prompt+v.Out
		}
		if judge(v, t.w.Now, sloTTFT+unloaded(&t.w.Profile.Engine, v.Prompt)) {
			o.own, o.ownTokens = true, v.Prompt+v.Out
		}
	}
	return slices.DeleteFunc(all, func(o outcome) bool { return o.Low }), ttft, gaps
}

// figures is the sum of a world that has run.
func (t *tally) figures(arrivals []traces.Arrival) Figures {
	all, ttft, gaps := t.outcomes(arrivals)
	f := Figures{Verdicts: t.verdicts, TTFTp50: quantile(ttft, .5), TTFTp99: quantile(ttft, .99), GapP99: quantile(gaps, .99)}
	if t.tenants > 1 && t.tiers == nil {
		f.Tenants = make([]float64, t.tenants)
	}
	prompts := make([]int, len(all))
	for i := range all {
		prompts[i] = all[i].Prompt
	}
	slices.Sort(prompts)
	var good, own, refused, lost, tokens, ownTokens, wasted int
	var of, in [4]float64
	for i := range all {
		o := &all[i]
		k := quartile(prompts, o.Prompt)
		of[k]++
		if o.own {
			in[k]++
			own++
			ownTokens += o.ownTokens
		}
		wasted += o.wasted
		if !o.good && o.ran != nil {
			f.NotGood.add(o.ran)
		}
		switch {
		case o.good:
			good++
			tokens += o.tokens
			if f.Tenants != nil {
				f.Tenants[o.Tenant]++
			}
		case o.served:
		case o.refused:
			refused++
		default:
			lost++
		}
	}
	for k := range of {
		f.Quartiles[k] = in[k] / max(of[k], 1)
	}
	f.Even = slices.Min(f.Quartiles[:]) / max(slices.Max(f.Quartiles[:]), 1e-9)
	for i := range f.Tenants {
		f.Tenants[i] /= t.span.Seconds()
	}
	f.Fairness = t.fairness(all, t.w.Profile.Engine.Capacity()*t.w.Engines())
	n, span := float64(max(len(all), 1)), t.span.Seconds()
	f.Goodput, f.GoodputOwn, f.TokenGoodput = float64(good)/span, float64(own)/span, float64(tokens)/span
	f.TokensOwn = float64(ownTokens) / span
	f.Attainment, f.Refused, f.Lost = float64(good)/n, float64(refused)/n, float64(lost)/n
	t.engines(&f, wasted)
	return f
}

// engines fills in what only the engines know. An aborted attempt has no first token
// and so is not among the wasted ones.
func (t *tally) engines(f *Figures, wasted int) {
	var finished, preempted, computed, recomputed, aborted, found uint64
	for i, s := range t.w.Stats() {
		b := t.before[i]
		finished += s.Finished - b.Finished
		preempted += s.Preemptions - b.Preemptions
		computed += s.TokensComputed - b.TokensComputed
		found += s.PrefixHits - b.PrefixHits
		recomputed += s.TokensRecomputed - b.TokensRecomputed
		aborted += s.TokensAborted - b.TokensAborted
	}
	f.KV = t.usage / float64(max(t.pages, 1))
	f.Preempted = 1000 * float64(preempted) / float64(max(finished, 1))
	f.Recomputed = float64(int64(recomputed)) / float64(max(computed, 1)) // found again since: below 0 at worst
	f.Wasted = (float64(wasted) + float64(aborted)) / float64(max(computed+found, 1))
	f.Hits = float64(found) / float64(max(computed+found, 1))
}

func quartile(sorted []int, length int) int {
	for q := 1; q < 4; q++ {
		if length < sorted[q*len(sorted)/4] {
			return q - 1
		}
	}
	return 3
}

// quantile sorts d and gives its q-quantile in seconds, 0 for none.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))].Seconds()
}

// scalars are the figures that are one number, in a fixed order.
func (f *Figures) scalars() []*float64 {
	all := []*float64{
		&f.Goodput, &f.Attainment, &f.TokenGoodput, &f.TTFTp50, &f.TTFTp99, &f.GapP99, &f.Preempted, &f.Recomputed,
		&f.Refused, &f.Lost, &f.KV, &f.GoodputOwn, &f.TokensOwn, &f.Wasted, &f.Hits, &f.Even,
	}
	for i := range f.Quartiles {
		all = append(all, &f.Quartiles[i])
	}
	for i := range f.Tenants {
		all = append(all, &f.Tenants[i])
	}
	if f.Recover != nil {
		all = append(all, f.Recover)
	}
	if l := f.Low; l != nil {
		all = append(all, &l.Answered, &l.Refused, &l.Left, &l.Drained, &l.TTFT)
	}
	if f.Fairness != nil {
		all = append(all, f.Fairness.scalars()...)
	}
	return all
}

// median takes each figure's median over shifts for itself; counts are summed.
func median(shifts []Figures) Figures {
	m := Figures{Tenants: make([]float64, len(shifts[0].Tenants)), Verdicts: map[string]int{}}
	if shifts[0].Recover != nil {
		m.Recover = new(float64)
	}
	if shifts[0].Low != nil {
		m.Low = &LowTier{}
	}
	if f := shifts[0].Fairness; f != nil {
		m.Fairness = &Fairness{Without: make([]float64, len(f.Without))}
	}
	for i, into := range m.scalars() {
		var all []float64
		for k := range shifts {
			all = append(all, *shifts[k].scalars()[i])
		}
		slices.Sort(all)
		*into = all[len(all)/2]
	}
	for k := range shifts {
		n := &shifts[k].NotGood
		m.NotGood = NotGood{m.NotGood.Left + n.Left, m.NotGood.Late + n.Late, m.NotGood.Slow + n.Slow, m.NotGood.Pause + n.Pause}
		for what, n := range shifts[k].Verdicts {
			m.Verdicts[what] += n
		}
	}
	return m
}
