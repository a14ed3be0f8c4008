package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	perPoint = 90 * time.Second // longer takes none that is worth its time
	settling = 10 * time.Second // from the end of a point to an idle engine
	polling  = 20 * time.Millisecond

	// Prompts are of these ids. Vocabularies begin with some special ones and have
	// letters or bytes after them; the smallest model to be met knows 99.
	lowID, highID = 16, 95
)

// Why a point is left out.
var (
	errTooLong = errors.New("took too long")
	errTooFew  = errors.New("its tokens came in too few pieces")
)

// sweep is a Run in progress.
type sweep struct {
	cfg    Config
	engine Engine
	random *rand.Rand
	begun  time.Time

	rows      []Row
	firsts    []first
	cuts      []cut
	seats     int
	seatsFull bool
	skipped   []string
}

// first is a lone prompt's first token.
type first struct {
	prompt int
	took   float64 // seconds
}

// cut is into how many steps a prompt was cut.
type cut struct{ prompt, beside, steps int }

func (s *sweep) run(ctx context.Context, progress func(done, all int, left time.Duration)) error {
	points := plan(&s.cfg, s.random)
	for i, p := range points {
		if time.Since(s.begun) > s.cfg.Within {
			s.skipped = append(s.skipped, fmt.Sprintf("%d points: no time left", len(points)-i))
			break
		}
		if s.seatsFull && p.seats() > s.seats {
			continue
		}
		err := s.point(ctx, p)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errTooLong) && !errors.Is(err, errTooFew) {
			return fmt.Errorf("%v: %w", p, err)
		}
		if err != nil {
			s.skipped = append(s.skipped, fmt.Sprintf("%v: %v", p, err))
		}
		if err := errors.Join(s.settle(ctx), ctx.Err()); err != nil {
			return err
		}
		done := i + 1
		progress(done, len(points), min(time.Since(s.begun)/time.Duration(done)*time.Duration(len(points)-done), s.cfg.Within-time.Since(s.begun)))
	}
	return nil
}

func (s *sweep) point(ctx context.Context, p point) error {
	ctx, cancel := context.WithTimeoutCause(ctx, perPoint, errTooLong)
	defer cancel()
	x := newStreams(ctx, &s.engine)
	defer x.close()
	var err error
	switch p.kind {
	case decode:
		err = s.decode(x, p)
	case beside:
		err = s.beside(x, p)
	case lone:
		err = s.lone(x, p)
	}
	if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
		return errTooLong
	}
	return err
}

// decode measures the steps of a batch in which all have begun.
func (s *sweep) decode(x *streams, p point) error {
	all := make([]*answer, p.batch)
	for i := range all {
		all[i] = x.start(s.prompt(p.prompt), s.cfg.output(p.prompt, p.batch))
	}
	var in []*answer
	since := 0 // tokens of the first answer when the last one began
	err := x.until(func() bool {
		before := len(in)
		in = slices.DeleteFunc(slices.Clone(all), func(a *answer) bool { return !a.begun() })
		if len(in) == 0 {
			return false
		}
		now := len(in[0].marks)
		if len(in) > before {
			since = now
		}
		return len(in) == len(all) || now-since > patience(p.prompt)
	})
	if err != nil {
		return err
	}
	s.seats = max(s.seats, len(in))
	s.seatsFull = s.seatsFull || len(in) < len(all)

	begin := make([]int, len(in))
	x.mu.Lock()
	for i, a := range in {
		begin[i] = len(a.marks) + 1 // the step that runs now may have computed a prompt
	}
	x.mu.Unlock()
	if err := x.until(func() bool {
		done := true
		for i, a := range in {
			if a.over {
				return true // the batch is no longer what it was
			}
			done = done && len(a.marks)-begin[i] > s.cfg.Steps
		}
		return done
	}); err != nil {
		return err
	}
	if err := s.alone(x.ctx, p.batch); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return s.batch(p, in, begin)
}

// batch makes a row of the steps of answers that decode, from the marks at begin on.
func (s *sweep) batch(p point, in []*answer, begin []int) error {
	row := Row{Steps: 1, Decodes: float64(len(in))}
	var gaps []float64
	for i, a := range in {
		end := min(begin[i]+s.cfg.Steps, len(a.marks)-1)
		if end-begin[i] < 3 {
			return errTooFew
		}
		for k := begin[i] + 1; k <= end; k++ {
			tokens := a.marks[k].total - a.marks[k-1].total
			for range tokens {
				gaps = append(gaps, a.marks[k].at.Sub(a.marks[k-1].at).Seconds()/float64(tokens))
			}
		}
		row.KV += float64(p.prompt) + float64(a.marks[begin[i]].total+a.marks[end].total)/2
	}
	row.Took = middle(gaps)
	return s.add(row)
}

// beside measures the steps in which a prompt is computed, by the tokens of an answer
// that decodes meanwhile. Of some tries it takes the one in the middle.
func (s *sweep) beside(x *streams, p point) error {
	all := make([]*answer, p.batch)
	for i := range all {
		all[i] = x.start(s.prompt(short), s.cfg.MaxModelLen-short)
	}
	witness := all[0]
	if err := x.until(func() bool {
		return witness.over || !slices.ContainsFunc(all, func(a *answer) bool { return len(a.marks) < 8 })
	}); err != nil {
		return err
	}
	var tries []try
	for range 3 {
		t, err := s.try(x, p, witness)
		if err != nil {
			return err
		}
		tries = append(tries, t)
	}
	if err := s.alone(x.ctx, p.batch); err != nil {
		return err
	}
	slices.SortFunc(tries, func(a, b try) int { return cmp.Compare(a.excess, b.excess) })
	t := tries[len(tries)/2]
	s.cuts = append(s.cuts, cut{p.prompt, p.batch, t.steps})
	return s.add(t.row)
}

// try is one prompt beside answers.
type try struct {
	row    Row
	excess float64 // seconds that its steps took longer than as many before
	steps  int     // that were clearly longer
}

func (s *sweep) try(x *streams, p point, witness *answer) (t try, err error) {
	sent := time.Now()
	a := x.start(s.prompt(p.prompt), 1)
	const after = 4 // tokens of the witness, so that the next try meets the usual steps again
	if err := x.until(func() bool {
		return witness.over || a.begun() && len(witness.marks) > after && witness.marks[len(witness.marks)-after].at.After(a.marks[0].at)
	}); err != nil {
		return t, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if witness.over {
		return t, errTooFew // the longest context was not long enough
	}
	marks := witness.marks
	begin := slices.IndexFunc(marks, func(m mark) bool { return m.at.After(sent) }) - 1
	end := begin + 1
	for k := begin + 1; k < len(marks); k++ {
		if marks[k].at.Sub(a.marks[0].at).Abs() < marks[end].at.Sub(a.marks[0].at).Abs() {
			end = k
		}
	}
	var usual, these []float64
	for k := max(begin-6, 1); k <= end; k++ {
		gap := marks[k].at.Sub(marks[k-1].at).Seconds() / float64(max(marks[k].total-marks[k-1].total, 1))
		if k <= begin {
			usual = append(usual, gap)
		} else {
			these = append(these, gap)
		}
	}
	normal := quantile(usual, 0.5)
	steps := float64(marks[end].total - marks[begin].total)
	t.row = Row{
		Steps: steps, Prefill: float64(p.prompt), Context: before(p.prompt), Decodes: steps * float64(p.batch), Took: marks[end].at.Sub(marks[begin].at).Seconds(),
		KV: steps * (float64(p.batch*(short+marks[begin].total)) + float64(p.prompt)/2),
	}
	t.excess = t.row.Took - steps*normal
	longest := quantile(these, 0.9) - normal
	for _, gap := range these {
		if gap-normal > longest/2 {
			t.steps++
		}
	}
	return t, nil
}

// before sums how many tokens are before each one of a prompt.
func before(prompt int) float64 { return float64(prompt) * float64(prompt) / 2 }

// lone takes the time to the first token of a prompt on an idle engine.
func (s *sweep) lone(x *streams, p point) error {
	sent := time.Now()
	a := x.start(s.prompt(p.prompt), 1)
	if err := x.until(a.begun); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s.firsts = append(s.firsts, first{p.prompt, a.marks[0].at.Sub(sent).Seconds()})
	return nil
}

func (s *sweep) add(r Row) error {
	if r.Took <= 0 {
		return errTooFew // all came at once
	}
	s.rows = append(s.rows, r)
	return nil
}

// prompt has nothing in common with any other, or a prefix cache would know it.
func (s *sweep) prompt(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = lowID + s.random.IntN(highID-lowID)
	}
	return ids
}

// alone reports ErrBusy where the engine has more than so many requests.
func (s *sweep) alone(ctx context.Context, ours int) error {
	if s.cfg.Force {
		return nil
	}
	running, waiting, err := s.engine.Gauges(ctx)
	if err == nil && running+waiting > ours {
		err = fmt.Errorf("%w: %d run and %d wait, of which %d are of this sweep", ErrBusy, running, waiting, ours)
	}
	return err
}

// settle waits until the engine has nothing left of the point before, also when ctx
// has ended. Beside other work that cannot be seen.
func (s *sweep) settle(ctx context.Context) error {
	if s.cfg.Force {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settling)
	defer cancel()
	for {
		running, waiting, err := s.engine.Gauges(ctx)
		if err == nil && running+waiting == 0 {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-time.After(polling):
		case <-ctx.Done():
			return fmt.Errorf("%w: %d run and %d wait %v after the last of this sweep were stopped", ErrBusy, running, waiting, settling)
		}
	}
}

// firstToken is by how much lone first tokens came later than their steps.
func (s *sweep) firstToken(c *Coefficients) float64 {
	size, _ := s.chunk()
	var late []float64
	for _, f := range s.firsts {
		steps := 1
		if size > 0 {
			steps = (f.prompt + size - 1) / size
		}
		late = append(late, f.took-c.Predict(&Row{Steps: float64(steps), Prefill: float64(f.prompt), Context: before(f.prompt), KV: float64(f.prompt*(steps+1)) / 2}))
	}
	return max(quantile(late, 0.5), 0)
}

// chunk is how many tokens one step takes at most, by into how many steps prompts
// were cut: n long ones, and perhaps a last one too short to see. It is the power of
// two that most of them agree with, or what the one in the middle says.
func (s *sweep) chunk() (size, whole int) {
	votes := map[int]int{}
	var sizes []float64
	for _, c := range s.cuts {
		if c.steps < 2 {
			whole = max(whole, c.prompt)
			continue
		}
		n, p := float64(c.steps), float64(c.prompt)
		sizes = append(sizes, p/n+float64(c.beside))
		for power := 128; power < 1<<20; power *= 2 {
			if left := float64(power - c.beside); left >= p/(n+0.5) && left <= p/(n-0.5) {
				votes[power]++
				if votes[power] > votes[size] {
					size = power
				}
			}
		}
	}
	if 2*votes[size] < len(sizes) {
		size = int(quantile(sizes, 0.5))
	}
	return size, whole
}
