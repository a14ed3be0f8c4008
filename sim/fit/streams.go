package fit

import (
	"context"
	"sync"
	"time"
)

// mark is the arrival of tokens.
type mark struct {
	at    time.Time
	total int // tokens of the answer so far
}

// streams are the answers of one point.
type streams struct {
	ctx     context.Context // of all answers
	cancel  context.CancelFunc
	engine  *Engine
	running sync.WaitGroup
	woken   chan struct{} // size 1: something came

	mu  sync.Mutex // guards what follows and all answers
	err error      // the first of an answer, but for those after close
}

// answer is one of them; streams.mu guards it.
type answer struct {
	marks []mark
	over  bool
}

// begun says whether there is a token.
func (a *answer) begun() bool { return len(a.marks) > 0 }

func newStreams(ctx context.Context, engine *Engine) *streams {
	x := &streams{engine: engine, woken: make(chan struct{}, 1)}
	x.ctx, x.cancel = context.WithCancel(ctx)
	return x
}

// start sends a prompt.
func (x *streams) start(prompt []int, output int) *answer {
	a := &answer{}
	x.running.Go(func() {
		err := x.engine.Generate(x.ctx, prompt, output, func(total int) {
			now := time.Now()
			x.mu.Lock()
			a.marks = append(a.marks, mark{now, total})
			x.mu.Unlock()
			x.wake()
		})
		x.mu.Lock()
		defer x.mu.Unlock()
		a.over = true
		if err != nil && x.err == nil && x.ctx.Err() == nil {
			x.err = err
		}
		x.wake()
	})
	return a
}

func (x *streams) wake() {
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

// until waits for holds, which is asked after each arrival and must not keep what it
// reads.
func (x *streams) until(holds func() bool) error {
	for {
		x.mu.Lock()
		err, ok := x.err, holds()
		x.mu.Unlock()
		if err != nil || ok {
			return err
		}
		select {
		case <-x.woken:
		case <-x.ctx.Done():
			return x.ctx.Err()
		}
	}
}

// close stops all answers and waits for them; what they have stays readable.
func (x *streams) close() {
	x.cancel()
	x.running.Wait()
}
