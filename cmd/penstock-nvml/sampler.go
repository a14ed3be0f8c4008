package main

import (
	"time"

	"penstock/scraper/nvml/wire"
)

const (
	slowEvery  = time.Second // between two readings of power, temperature, errors; and of events
	deadRounds = 3           // rounds in which no GPU answers, then NVML is initialised anew, by a new process
)

// NVML's return codes (nvml.h) that are told apart here; penstock knows the others.
const (
	success          = 0
	uninitialized    = 1
	notSupported     = 3
	noPermission     = 4
	functionNotFound = 13
	gpuNotFound      = 28
	unknownError     = 999
)

// library is NVML: go-nvml's, or none where this was built without cgo. Its methods
// are called by one goroutine; each may hang.
type library interface {
	init() int
	// gpus fills in index, UUID and, where a GPU does not answer, Code.
	gpus() ([]wire.GPU, int)
	driver() string
	missing() []string
	fast(g *wire.GPU) // memory, utilization, Code
	slow(g *wire.GPU) // the rest
	// events returns the XIDs since the last call, and whether a driver leaves a GPU.
	events() ([]wire.XID, bool)
	shutdown()
}

// sampler reads the GPUs in turn.
type sampler struct {
	lib   library
	calls *calls
	pace  pace
	paced bool // the call that runs counts for pace
	start time.Time
	out   chan<- wire.Line // unbuffered: who reads slowly gets fewer readings
	stop  <-chan struct{}

	gpus []wire.GPU
	due  []time.Time // per GPU, of its next slow reading
	xids []wire.XID  // not sent yet
	dead int         // rounds in which no GPU answered
}

func newSampler(open func(*calls) library, deadline time.Duration, out chan<- wire.Line, stop <-chan struct{}) *sampler {
	s := &sampler{calls: &calls{deadline: deadline}, start: time.Now(), out: out, stop: stop}
	s.pace = pace{every: often, since: s.start}
	s.calls.took = func(_ string, d time.Duration) {
		if s.paced {
			s.pace.note(time.Now(), d)
		}
	}
	s.lib = open(s.calls)
	return s
}

// run reads until stop closes or there is an end, which is the last line it sends.
func (s *sampler) run() {
	if code := s.lib.init(); code != success {
		s.send(wire.Line{End: wire.EndInit, Code: code})
		return
	}
	gpus, code := s.lib.gpus()
	if code == success && len(gpus) == 0 {
		code = gpuNotFound
	}
	if code != success {
		s.send(wire.Line{End: wire.EndInit, Code: code})
		return
	}
	s.gpus, s.due = gpus, make([]time.Time, len(gpus))
	for i := range s.due { // one GPU's slow reading after the other, not all at once
		s.due[i] = s.start.Add(slowEvery * time.Duration(i) / time.Duration(len(gpus)))
	}
	driver, missing, events := s.lib.driver(), s.lib.missing(), time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next := time.Now(); ; {
		select {
		case <-s.stop:
			s.lib.shutdown()
			return
		case <-timer.C:
		}
		l := s.round(time.Now())
		if now := time.Now(); now.Sub(events) >= slowEvery {
			events = now
			xids, unbind := s.lib.events()
			s.xids = append(s.xids, xids...)
			if unbind {
				s.lib.shutdown()
				l.End = wire.EndUnbind
			}
		}
		n := min(len(s.xids), wire.MaxXIDs)
		l.XIDs, s.xids = s.xids[:n:n], s.xids[n:]
		l.Driver, l.Missing, missing = driver, missing, nil
		if !s.send(l) {
			s.lib.shutdown()
			return
		}
		if l.End != "" {
			return
		}
		if next = next.Add(s.pace.every); time.Until(next) < 0 { // what was missed is not made up
			next = time.Now().Add(s.pace.every)
		}
		timer.Reset(time.Until(next))
	}
}

// round reads every GPU, at most one of them thoroughly.
func (s *sampler) round(now time.Time) wire.Line {
	slow, gone, code := false, 0, success
	for i := range s.gpus {
		g := &s.gpus[i]
		if g.At == 0 && g.Code != success { // has no handle
			continue
		}
		if !slow && !now.Before(s.due[i]) {
			slow = true
			s.due[i] = now.Add(slowEvery)
			s.lib.slow(g)
			g.Slow = time.Since(s.start)
		}
		s.paced = true
		s.lib.fast(g)
		s.paced = false
		g.At = time.Since(s.start)
		switch g.Code {
		case uninitialized, noPermission, unknownError:
			gone++
			code = g.Code
		}
	}
	s.dead++
	if gone < len(s.gpus) {
		s.dead = 0
	}
	l := wire.Line{Every: s.pace.every, Widened: s.pace.widened, GPUs: append([]wire.GPU(nil), s.gpus...)}
	if s.dead >= deadRounds {
		l.End, l.Code = wire.EndCalls, code
	}
	return l
}

// send reports whether the line was taken.
func (s *sampler) send(l wire.Line) bool {
	select {
	case s.out <- l:
		return true
	case <-s.stop:
		return false
	}
}
