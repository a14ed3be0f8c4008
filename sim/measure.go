package sim

import (
	"slices"
	"time"

	"penstock/scheduler"
	"penstock/sim/engine"
	"penstock/sim/traces"
)

// sloGap is the longest pause between two tokens that is still good.
const sloGap = time.Second

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

func (n *NotGood) add(v *visit) {
	switch {
	case v.phase == failed:
		n.Left++
	case v.first == 0 || v.first-v.sent > sloTTFT:
		n.Late++
	case v.perToken() > sloTPOT:
		n.Slow++
	default:
		n.Pause++
	}
}

// tally counts what happens in a world.
type tally struct {
	profile    *Profile
	tenants    int
	tiers      []scheduler.Tier // none for one; else tenant i is of tier i
	width      int              // lines of a lane
	warm, span time.Duration
	verdicts   map[string]int
	service    [][]float64    // weighed tokens of each tenant in each backlogWindow; empty for one tenant
	turned     []bool         // origins refused at least once
	before     []engine.Stats // at the end of warm
	usage      float64        // sum of the KV usage on the pages read since then
	pages      int
}

func newTally(p *Profile, c *Config) *tally {
	t := &tally{profile: p, tenants: c.Workload.Tenants, tiers: tiersOf(c.Workload), width: c.Width, warm: c.Warm, span: c.Span, verdicts: map[string]int{}}
	if t.tenants > 1 {
		t.service = make([][]float64, t.tenants)
		for i := range t.service {
			t.service[i] = make([]float64, (c.Span+backlogWindow-1)/backlogWindow)
		}
	}
	return t
}

func (t *tally) sent(v *visit) {
	for len(t.turned) <= v.origin {
		t.turned = append(t.turned, false)
	}
}

func (t *tally) refused(v *visit) { t.turned[v.origin] = true }

// page is one that was read.
func (t *tally) page(now time.Duration, kv float64) {
	if now > t.warm {
		t.usage += kv
		t.pages++
	}
}

func (t *tally) told(v scheduler.Verdict) { t.verdicts[v.Action.String()+" "+v.Reason.String()]++ }

// good judges an attempt; one that runs still, by its tokens so far.
func (v *visit) good(now, ttft time.Duration) bool {
	if v.first == 0 || v.phase == failed || v.first-v.sent > ttft {
		return false
	}
	gap := v.gap
	if v.phase == inside {
		gap = max(gap, now-v.last)
	}
	return gap <= sloGap && v.perToken() <= sloTPOT
}

// perToken is the mean time of each token after the first.
func (v *visit) perToken() time.Duration { return (v.last - v.first) / time.Duration(max(v.out-1, 1)) }

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
	ran                        *visit // its last attempt that an engine took
	wasted                     int    // tokens of its attempts that were answered and not good
}

// outcomes are those of the measured span, and the delays that their attempts saw.
func (t *tally) outcomes(w *world, arrivals []traces.Arrival) (all []outcome, ttft, gaps []time.Duration) {
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
		all[i].Arrival, all[i].refused = arrivals[first+i], first+i < len(t.turned) && t.turned[first+i]
	}
	for _, v := range w.visits {
		if v.origin < first || v.origin >= past || v.Low {
			continue
		}
		o := &all[v.origin-first]
		if v.ran {
			o.ran = v
		}
		good := v.good(w.now, sloTTFT)
		if v.first > 0 {
			o.served = true
			ttft, gaps = append(ttft, v.first-v.sent), append(gaps, v.gap)
			if !good {
				o.wasted += v.Prompt + v.out
			}
		}
		if good {
			o.good, o.tokens = true, v.Prompt+v.out
		}
		if v.good(w.now, sloTTFT+unloaded(&t.profile.Engine, v.Prompt)) {
			o.own, o.ownTokens = true, v.Prompt+v.out
		}
	}
	return slices.DeleteFunc(all, func(o outcome) bool { return o.Low }), ttft, gaps
}

// figures is the sum of a world that has run.
func (t *tally) figures(w *world, arrivals []traces.Arrival) Figures {
	all, ttft, gaps := t.outcomes(w, arrivals)
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
	f.Fairness = t.fairness(all, t.profile.Engine.Capacity()*len(w.units))
	n, span := float64(max(len(all), 1)), t.span.Seconds()
	f.Goodput, f.GoodputOwn, f.TokenGoodput = float64(good)/span, float64(own)/span, float64(tokens)/span
	f.TokensOwn = float64(ownTokens) / span
	f.Attainment, f.Refused, f.Lost = float64(good)/n, float64(refused)/n, float64(lost)/n
	t.engines(w, &f, wasted)
	return f
}

// engines fills in what only the engines know. An aborted attempt has no first token
// and so is not among the wasted ones.
func (t *tally) engines(w *world, f *Figures, wasted int) {
	var finished, preempted, computed, recomputed, aborted, found uint64
	for i, u := range w.units {
		s, b := u.engine.Stats(), t.before[i]
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
