package gateway

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/reason"
)

// kept is how many requests each list of the journal remembers.
const kept = 100

// Failure is a request without a whole answer, or one that went through more than one
// lane, as /debug/state shows it. It has nothing of the body but the model's name.
type Failure struct {
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

// Failures are all those for one reason.
type Failures struct {
	Reason reason.Reason `json:"reason"`
	Count  int           `json:"count"` // since start
	Last   Failure       `json:"last"`
}

// journal remembers the last requests that failed. Those refused before they were
// queued have a list of their own: under load they come in thousands per second and
// would push out the others. For the same cause the last of each reason stays.
type journal struct {
	mu       sync.Mutex // guards all below
	refused  recent
	failed   recent
	routed   recent
	byReason map[reason.Reason]*Failures
}

// recent is the last kept failures.
type recent struct {
	all  [kept]Failure
	next int
}

func (r *recent) add(f *Failure) {
	r.all[r.next%kept] = *f
	r.next++
}

// newest returns them, newest first.
func (r *recent) newest(now time.Time) []Failure {
	out := make([]Failure, 0, min(r.next, kept))
	for i := r.next - 1; i >= max(r.next-kept, 0); i-- {
		out = append(out, r.all[i%kept].aged(now))
	}
	return out
}

func (f Failure) aged(now time.Time) Failure {
	f.Age = now.Sub(f.At).Seconds()
	return f
}

// add takes one failure; queued: it had a place in its lane.
func (j *journal) add(f *Failure, queued bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if f.Route != "" {
		j.routed.add(f)
	}
	if f.Outcome == string(succeeded) {
		return
	}
	if queued {
		j.failed.add(f)
	} else {
		j.refused.add(f)
	}
	r := j.byReason[f.Reason]
	if r == nil {
		r = &Failures{Reason: f.Reason}
		j.byReason[f.Reason] = r
	}
	r.Count++
	r.Last = *f
}

// show returns the failures by reason, the most frequent first, and the lists.
func (j *journal) show(now time.Time) (byReason []Failures, refused, failed, routed []Failure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	byReason = make([]Failures, 0, len(j.byReason))
	for _, r := range j.byReason {
		byReason = append(byReason, Failures{r.Reason, r.Count, r.Last.aged(now)})
	}
	slices.SortFunc(byReason, func(a, b Failures) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return byReason, j.refused.newest(now), j.failed.newest(now), j.routed.newest(now)
}

// remember writes a request that got no whole answer, or went through several lanes, into
// the journal.
func (x *exchange) remember(now time.Time, status int, end outcome, why reason.Reason) {
	f := Failure{
		At: now, ID: x.id, Tenant: x.who.Name, Model: x.request.Model, Node: x.relay.node, Attempts: x.relay.tries,
		Status: status, Outcome: string(end), Reason: why, Took: now.Sub(x.arrived).Seconds(), Route: x.trip.String(x.class.Lane),
	}
	if x.label != x.id {
		f.Label = strings.Clone(x.label) // it may be the start of a longer header
	}
	if t := x.told; t != nil {
		f.Ahead, f.Wait, f.Limit, f.Detail = t.Ahead, t.Wait.Seconds(), t.Limit.Seconds(), t.Detail
	}
	x.g.journal.add(&f, x.queued)
}
