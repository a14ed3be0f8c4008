package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// toy is an engine as vLLM runs one: first come first served, prefill in chunks,
// one token per step and sequence, seats, and gauges that move at a step's end.
// It has no preemption: KV may pass 1, and that is what the tests look at.
type toy struct {
	seats, k, chunk         int
	fixed, perToken, perSeq time.Duration
	queue                   []*job
	runs                    []*job
	page                    Sample // as it would read now
	steps                   float64
}

type job struct {
	r         Request
	slot      Slot
	left, out int // prompt tokens to prefill, output tokens to come
	held      int
}

// step runs one step and returns how long it took, who got a first token, who
// grew and who ended.
func (e *toy) step() (took time.Duration, first, ended []*job) {
	budget := e.chunk
	for budget > 0 {
		i := slices.IndexFunc(e.runs, func(j *job) bool { return j.left > 0 })
		if i < 0 {
			if len(e.queue) == 0 || len(e.runs) == e.seats {
				break
			}
			e.runs, e.queue = append(e.runs, e.queue[0]), e.queue[1:]
			continue
		}
		n := min(budget, e.runs[i].left)
		e.runs[i].left -= n
		e.runs[i].held += n
		budget -= n
		if e.runs[i].left == 0 {
			first = append(first, e.runs[i])
		}
	}
	for _, j := range e.runs {
		if j.left == 0 {
			j.held++
			j.out--
		}
	}
	took = e.fixed + time.Duration(e.chunk-budget)*e.perToken + time.Duration(len(e.runs))*e.perSeq
	e.runs = slices.DeleteFunc(e.runs, func(j *job) bool {
		if j.left == 0 && j.out <= 0 {
			ended = append(ended, j)
			return true
		}
		return false
	})
	held := 0
	for _, j := range e.runs {
		held += j.held
	}
	e.steps++
	e.page = Sample{KV: float64(held) / float64(e.k), Running: len(e.runs), Waiting: len(e.queue), KVTokens: e.k, Steps: e.steps, StepTime: took}
	return took, first, ended
}

// world is one engine, its agent and the heads on their way, in virtual time.
type world struct {
	t        *testing.T
	now      time.Time
	s        *State
	e        *toy
	room     []parked // with the end of their stay
	pick     []Request
	lanes    []Request   // delivered one after another, as fast as the room takes them
	parked   []parked    // suspended
	stepEnd  time.Time   // zero while the engine is idle
	effects  func()      // of the step in progress
	polled   time.Time   // next poll
	lost     func() bool // whether this poll is lost; nil = none
	onStart  func(Request)
	starts   int
	tokens   int // started, expected
	dropped  int
	maxOwn   int
	maxLevel float64 // KV held plus prompts on their way, right after a start, over K
	firsts   int
	lastTTFT time.Duration
	inTime   int // first tokens within the slo, own prefill not counted
}

type parked struct {
	r     Request
	due   time.Time
	after time.Duration // and for how long it is suspended then
}

func newWorld(t *testing.T, e *toy) *world {
	start := time.Unix(1000, 0)
	s, err := New(watermarks(), start)
	if err != nil {
		t.Fatal(err)
	}
	e.page.KVTokens = e.k
	w := &world{t: t, now: start, s: s, e: e, polled: start}
	return w
}

// run moves time on to end.
func (w *world) run(end time.Time) {
	for w.now.Before(end) {
		next := end
		if w.polled.Before(next) {
			next = w.polled
		}
		if !w.stepEnd.IsZero() && w.stepEnd.Before(next) {
			next = w.stepEnd
		}
		for _, list := range [][]parked{w.parked, w.room} {
			for _, p := range list {
				if p.due.Before(next) {
					next = p.due
				}
			}
		}
		w.now = next
		if w.now.Equal(w.stepEnd) {
			w.stepEnd = time.Time{}
			w.effects()
		}
		if w.now.Equal(w.polled) {
			w.polled = w.now.Add(50 * time.Millisecond)
			if w.lost == nil || !w.lost() {
				p := w.e.page
				p.At, p.Asked = w.now, w.now
				w.s.Observe(w.now, p)
			}
		}
		w.deliver()
		w.fill()
		w.kick()
	}
}

func (w *world) deliver() {
	w.room = slices.DeleteFunc(w.room, func(p parked) bool {
		if p.due.After(w.now) {
			return false
		}
		w.parked = append(w.parked, parked{r: p.r, due: w.now.Add(p.after)})
		return true
	})
	for i := 0; i < len(w.parked); {
		if p := w.parked[i]; !p.due.After(w.now) {
			w.parked = slices.Delete(w.parked, i, i+1)
			w.head(p.r)
			continue
		}
		i++
	}
	for len(w.lanes) > 0 {
		r := w.lanes[0]
		w.lanes = w.lanes[1:]
		w.head(r)
	}
}

func (w *world) head(r Request) {
	switch v := w.s.Decide(w.now, &r); v.Action {
	case Start:
		w.begin(r)
	case Drop:
		w.dropped++
	case Hold:
		if len(w.room) < 8 {
			w.room = append(w.room, parked{r, w.now.Add(500 * time.Millisecond), v.After})
			return
		}
		fallthrough
	default:
		if v.After < minPause || v.After > maxPause {
			w.t.Fatalf("pause is %s, want 50ms..5s", v.After)
		}
		w.parked = append(w.parked, parked{r: r, due: w.now.Add(v.After)})
	}
}

func (w *world) fill() {
	for len(w.room) > 0 {
		w.pick = w.pick[:0]
		for _, p := range w.room {
			w.pick = append(w.pick, p.r)
		}
		i, v := w.s.Pick(w.now, w.pick)
		if i < 0 {
			return
		}
		r := w.room[i].r
		w.room = slices.Delete(w.room, i, i+1)
		if v.Action == Start {
			w.begin(r)
		} else {
			w.dropped++
		}
	}
}

func (w *world) begin(r Request) {
	j := &job{r: r, left: r.PromptTokens, out: max(r.MaxTokens, 1)}
	j.slot = w.s.Reserve(w.now, &r)
	w.e.queue = append(w.e.queue, j)
	w.starts++
	w.tokens += r.PromptTokens + r.ExpectedOut
	own, held := 0, 0
	for _, q := range [][]*job{w.e.queue, w.e.runs} {
		for _, j := range q {
			held += j.held + j.left
			if j.left > 0 {
				own += j.r.Sequences
			}
		}
	}
	w.maxOwn = max(w.maxOwn, own)
	held -= len(w.e.runs) // the step in progress has counted its tokens already
	w.maxLevel = max(w.maxLevel, float64(held)/float64(w.e.k))
	if w.onStart != nil {
		w.onStart(r)
	}
}

// kick begins the engine's next step; what it did shows at its end.
func (w *world) kick() {
	if !w.stepEnd.IsZero() || len(w.e.queue)+len(w.e.runs) == 0 {
		return
	}
	before := w.e.page
	took, first, ended := w.e.step()
	after := w.e.page
	w.e.page = before
	w.stepEnd = w.now.Add(took)
	w.effects = func() {
		w.e.page = after
		for _, j := range first {
			w.s.Progress(w.now, j.slot, j.r.PromptTokens, 1)
			w.firsts++
			if w.lastTTFT = w.now.Sub(j.r.Opened); w.lastTTFT <= j.r.SLOTTFT+time.Duration(j.r.PromptTokens)*w.e.perToken {
				w.inTime++
			}
		}
		for _, j := range slices.Concat(w.e.runs, ended) {
			if j.left == 0 {
				w.s.Progress(w.now, j.slot, 0, j.r.MaxTokens-j.out)
			}
		}
		for _, j := range ended {
			w.s.Release(w.now, j.slot)
		}
	}
}

func request(rng *rand.Rand, now time.Time, prompt, out int) Request {
	return Request{
		Hash: rng.Uint64(), PromptTokens: prompt, ExpectedOut: out, MaxTokens: out, Sequences: 1,
		Opened: now, Deadline: now.Add(30 * time.Second), SLOTTFT: 2 * time.Second, Stream: true,
	}
}

// 500 requests arrive within one tick of an engine that has 8 seats.
func TestBurstDoesNotOvershoot(t *testing.T) {
	for _, c := range []struct {
		name        string
		k, prompt   int
		seats, fast int
	}{
		{"eight seats", 200_000, 500, 8, 1},
		{"small KV", 8_000, 300, 256, 1},
		{"KV smaller than one tick's prompts", 3_000, 200, 8, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, &toy{seats: c.seats, k: c.k, chunk: 2048, fixed: 10 * time.Millisecond, perToken: 25 * time.Microsecond, perSeq: 30 * time.Microsecond})
			w.run(w.now.Add(time.Second))
			rng := rand.New(rand.NewPCG(1, 2))
			for range 500 {
				w.lanes = append(w.lanes, request(rng, w.now, c.prompt, 50))
			}
			w.run(w.now.Add(40 * time.Second))
			if w.maxOwn > 20 {
				t.Errorf("own sequences without a first token reached %d, want at most 20", w.maxOwn)
			}
			if w.maxLevel > 0.95 {
				t.Errorf("starts took KV to %.3f, want at most 0.95", w.maxLevel)
			}
			if w.starts == 0 || w.starts+w.dropped < 500 {
				t.Errorf("started %d and dropped %d of 500", w.starts, w.dropped)
			}
			t.Logf("started %d, dropped %d, own %d, level %.3f", w.starts, w.dropped, w.maxOwn, w.maxLevel)
			if v := w.s.View(w.now); v.Requests != 0 || v.Tokens != 0 || v.Credit != 0 || v.Pending != 0 || v.PendingSeq != 0 {
				t.Errorf("ledger at rest: %+v", v)
			}
		})
	}
}

// A burst that the engine can serve starts as fast as it prefills.
func TestBurstOnIdleEngineStartsPromptly(t *testing.T) {
	w := newWorld(t, &toy{seats: 256, k: 400_000, chunk: 2048, fixed: 8 * time.Millisecond, perToken: 25 * time.Microsecond, perSeq: 30 * time.Microsecond})
	w.run(w.now.Add(time.Second))
	rng := rand.New(rand.NewPCG(1, 2))
	begin := w.now
	var last time.Time
	w.onStart = func(Request) { last = w.now }
	for range 100 {
		w.lanes = append(w.lanes, request(rng, w.now, 300, 100))
	}
	w.run(w.now.Add(3 * time.Second))
	// 100 x 300 tokens are 15 chunks of 59 ms: 0.9 s of prefill.
	if w.starts != 100 || last.Sub(begin) > 2*time.Second {
		t.Errorf("%d of 100 started, the last after %s; want all within 2s", w.starts, last.Sub(begin))
	}
	t.Logf("last start after %s, first token %s, predicted rate %.0f tokens/s", last.Sub(begin), w.lastTTFT, w.s.View(w.now).Prefill)
}

// Five lost scrapes in a row must not stop safe starts.
func TestLostScrapesDoNotStall(t *testing.T) {
	w := newWorld(t, &toy{seats: 256, k: 400_000, chunk: 2048, fixed: 8 * time.Millisecond, perToken: 25 * time.Microsecond, perSeq: 30 * time.Microsecond})
	rng := rand.New(rand.NewPCG(1, 2))
	polls := 0
	w.lost = func() bool { polls++; return polls > 20 && polls%8 < 5 }
	var last time.Time
	worst := time.Duration(0)
	w.onStart = func(Request) {
		if !last.IsZero() {
			worst = max(worst, w.now.Sub(last))
		}
		last = w.now
	}
	for range 1000 { // 20 requests per second
		w.lanes = append(w.lanes, request(rng, w.now, 200+rng.IntN(1000), 20+rng.IntN(200)))
		w.run(w.now.Add(50 * time.Millisecond))
	}
	if worst > 300*time.Millisecond {
		t.Errorf("longest pause between starts is %s, want at most 300ms", worst)
	}
	t.Logf("started %d of 1000, longest pause %s", w.starts, worst)
}

// Under steady overload (2x) those who start are in time, and the drain rate is what the engine really takes: within
// 10 % of the long-run mean at the end of every 20 s, once 40 s have passed.
func TestDrainRateUnderOverload(t *testing.T) {
	for _, c := range []struct {
		name   string
		k, out int
		every  time.Duration
		limit  float64
	}{
		{"bound by prefill", 800_000, 200, 65 * time.Millisecond, 0.10},
		{"bound by KV", 500_000, 800, 65 * time.Millisecond, 0.10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, &toy{seats: 256, k: c.k, chunk: 2048, fixed: 10 * time.Millisecond, perToken: 25 * time.Microsecond, perSeq: 60 * time.Microsecond})
			rng := rand.New(rand.NewPCG(3, 4))
			var got []float64
			begin := w.now
			for at := time.Duration(0); at < 240*time.Second; at += c.every {
				w.lanes = append(w.lanes, request(rng, w.now, 200+rng.IntN(7800), 1+rng.IntN(2*c.out)))
				w.run(begin.Add(at + c.every))
				if at/(20*time.Second) != (at+c.every)/(20*time.Second) {
					got = append(got, w.s.View(w.now).DrainRate)
				}
				if at < 40*time.Second && at+c.every >= 40*time.Second {
					w.starts, w.tokens, w.firsts, w.inTime = 0, 0, 0, 0
				}
			}
			truth := float64(w.tokens) / 200
			for i, rate := range got[2:] {
				if abs(rate/truth-1) > c.limit {
					t.Errorf("after %d s the drain rate is %.0f tokens/s, want %.0f within %.0f %%", 60+20*i, rate, truth, 100*c.limit)
				}
			}
			if w.inTime < w.firsts*9/10 {
				t.Errorf("%d of %d first tokens in time, want 90 %%: late heads take the room of those in time", w.inTime, w.firsts)
			}
			t.Logf("truth %.0f tokens/s, %.1f starts/s of %.1f offered, drain rate %.0f, highest level %.2f, in time %d of %d", truth, float64(w.starts)/200, 1/c.every.Seconds(), got, w.maxLevel, w.inTime, w.firsts)
		})
	}
}

func abs(x float64) float64 { return max(x, -x) }
