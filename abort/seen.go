package abort

import (
	"container/list"
	"sync"
	"time"
)

// Seen is the set of ids that were aborted lately, so that a delivery that comes
// later is dropped. It is advice: a forgotten id costs one look at its record. It
// is safe for concurrent use.
type Seen struct {
	limit int
	keep  time.Duration

	mu    sync.Mutex // guards all below
	order *list.List // of mark, oldest first
	ids   map[string]*list.Element
}

type mark struct {
	id string
	at time.Time
}

// NewSeen keeps at most limit ids (less than 1 counts as 1), the oldest out first,
// each for keep after it was last marked. An id takes about 200 bytes.
func NewSeen(limit int, keep time.Duration) *Seen {
	return &Seen{limit: max(limit, 1), keep: keep, order: list.New(), ids: map[string]*list.Element{}}
}

// Mark notes at time now that id was aborted. An empty id is not noted.
func (s *Seen) Mark(now time.Time, id string) {
	if id == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.ids[id]; ok {
		e.Value = mark{id, now}
		s.order.MoveToBack(e)
		return
	}
	for oldest := s.order.Front(); oldest != nil && (len(s.ids) >= s.limit || s.past(now, oldest)); oldest = s.order.Front() {
		delete(s.ids, s.order.Remove(oldest).(mark).id)
	}
	s.ids[id] = s.order.PushBack(mark{id, now})
}

// Marked reports whether id was marked less than keep before now and not pushed
// out since.
func (s *Seen) Marked(now time.Time, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.ids[id]
	return ok && !s.past(now, e)
}

func (s *Seen) past(now time.Time, e *list.Element) bool {
	return now.Sub(e.Value.(mark).at) >= s.keep
}
