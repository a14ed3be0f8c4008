// Package journal remembers the last requests that got no whole answer, or went through
// several lanes, for a gateway's /debug/state. Safe for concurrent use.
package journal

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"penstock/reason"
)

// Kept is how many requests each list of the journal remembers.
const Kept = 100

// Entry is a request without a whole answer, or one that went through more than one
// lane, as /debug/state shows it. It has nothing of the body but the model's name.
type Entry struct {
	At       time.Time     `json:"at"`
	Age      float64       `json:"age_seconds"` // when shown
	ID       string        `json:"id"`
	Label    string        `json:"label,omitempty"` // the client's x-request-id
	Tenant   string        `json:"tenant,omitempty"`
	Model    string        `json:"model,omitempty"` // as the client named it
	Node     string        `json:"node,omitempty"`  // where it ran, as far as the gateway heard
	Attempts int           `json:"attempts,omitempty"`
	Status   int           `json:"status"`
	Outcome  string        `json:"outcome"`
	Reason   reason.Reason `json:"reason"`
	Took     float64       `json:"took_seconds"`
	Ahead    int           `json:"ahead,omitempty"`         // requests, of a refusal for load
	Wait     float64       `json:"wait_seconds,omitempty"`  // the one predicted for it, or that a passed deadline was
	Limit    float64       `json:"limit_seconds,omitempty"` // the longest predicted wait it would have been given a place for
	Detail   string        `json:"detail,omitempty"`        // what the client was told beyond the reason
	Route    string        `json:"route,omitempty"`         // the lanes it went through, where there was more than one
}

// Reason is all those for one reason.
type Reason struct {
	Reason reason.Reason `json:"reason"`
	Count  int           `json:"count"` // since start
	Last   Entry         `json:"last"`
}

// Journal remembers the last requests that failed. Those refused before they were
// queued have a list of their own: under load they come in thousands per second and
// would push out the others. For the same cause the last of each reason stays.
type Journal struct {
	mu       sync.Mutex // guards all below
	refused  recent
	failed   recent
	routed   recent
	byReason map[reason.Reason]*Reason
}

// recent is the last Kept entries.
type recent struct {
	all  [Kept]Entry
	next int
}

func (r *recent) add(f *Entry) {
	r.all[r.next%Kept] = *f
	r.next++
}

// newest returns them, newest first.
func (r *recent) newest(now time.Time) []Entry {
	out := make([]Entry, 0, min(r.next, Kept))
	for i := r.next - 1; i >= max(r.next-Kept, 0); i-- {
		out = append(out, r.all[i%Kept].aged(now))
	}
	return out
}

func (f Entry) aged(now time.Time) Entry {
	f.Age = now.Sub(f.At).Seconds()
	return f
}

// New makes an empty one.
func New() *Journal { return &Journal{byReason: map[reason.Reason]*Reason{}} }

// Add takes one request; queued: it had a place in its lane; whole: it got its answer.
func (j *Journal) Add(f *Entry, queued, whole bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if f.Route != "" {
		j.routed.add(f)
	}
	if whole {
		return
	}
	if queued {
		j.failed.add(f)
	} else {
		j.refused.add(f)
	}
	r := j.byReason[f.Reason]
	if r == nil {
		r = &Reason{Reason: f.Reason}
		j.byReason[f.Reason] = r
	}
	r.Count++
	r.Last = *f
}

// Show returns the failures by reason, the most frequent first, and the lists.
func (j *Journal) Show(now time.Time) (byReason []Reason, refused, failed, routed []Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	byReason = make([]Reason, 0, len(j.byReason))
	for _, r := range j.byReason {
		byReason = append(byReason, Reason{r.Reason, r.Count, r.Last.aged(now)})
	}
	slices.SortFunc(byReason, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return byReason, j.refused.newest(now), j.failed.newest(now), j.routed.newest(now)
}
