// Package door refuses at once what would not start in time: it predicts when a
// newcomer would start, and keeps the places of those it told when to come back.
// Pure: the caller passes now and calls it from one goroutine at a time.
// registry/memory and the simulator use it; registry/redis does the same arithmetic in
// its scripts. DESIGN.md of registry has the derivation.
package door

import (
	"hash/crc32"
	"math"
	"time"

	"penstock/lane"
	"penstock/reason"
	"penstock/registry"
)

const (
	rateMemory   = time.Second      // how far back the smoothed drain rate looks
	rateKept     = 30 * time.Second // how long the last known rate serves when none is reported
	startsWindow = 10               // seconds of starts that stand in for a rate after that
	minRetry     = time.Second
	maxRetry     = 60 * time.Second

	errorGain  = 0.1         // EWMA of the forecast's error, about the last ten starts
	errorMost  = 2           // an outage teaches no more than that, to be forgotten soon
	errorFloor = time.Second // added to a forecast before its error is taken relative to it
)

// ModelKept is how long an idle model's rate and errors are remembered.
const ModelKept = 10 * time.Minute

// Share is a part of the backlog.
type Share struct{ Requests, Tokens int }

func (s *Share) add(requests, tokens int) {
	s.Requests += requests
	s.Tokens += tokens
}

// Forecast is what Judge predicted for a request.
type Forecast struct {
	Wait  time.Duration
	known bool // false: no rate was known, nothing is learned from it
}

// Door is what is known about each model's backlog and speed. Make it with New.
type Door struct {
	epoch  time.Time
	models map[string]*model
}

// New makes a door with nothing behind it. No later call may pass an earlier now.
func New(now time.Time) *Door { return &Door{epoch: now, models: map[string]*model{}} }

// model is what the door knows about one model.
type model struct {
	classes map[string]*class // by tier
	used    time.Time
	rate    float64 // expected tokens started per second, smoothed; 0 = never reported
	rateAt  time.Time
	starts  [startsWindow]starts
	behind  time.Duration // since when one request has waited behind another, or the last start from then
}

// starts is what was started in one second while more waited, and how long that took.
type starts struct {
	second int64
	tokens int
	took   time.Duration
}

// class is one tier of a model.
type class struct {
	rank         int
	share        Share // what waits
	lanes        int   // lanes with something waiting
	bias, spread float64
	places       places
}

// Visitor is a request at the door.
type Visitor struct {
	ID          string
	Lane        lane.Key
	Rank        int           // of its tier; the lowest goes first
	Fingerprint uint64        // of a refused body, by which its return is known; 0 = none
	Tokens      int           // expected, prompt and output
	Limit       time.Duration // longest wait that is worth it
	Own         Share         // what of its lane waits
	Rate        float64       // drain rate as reported, tokens per second; 0 = not known
	Full        bool          // its lane or the memory is full
}

// model finds or makes a model's entry.
func (d *Door) model(name string, now time.Time) *model {
	m := d.models[name]
	if m == nil {
		m = &model{classes: map[string]*class{}}
		d.models[name] = m
	}
	m.used = now
	return m
}

// class finds or makes a tier's entry; the rank is as of the last call.
func (m *model) class(tier string, rank int) *class {
	c := m.classes[tier]
	if c == nil {
		c = &class{places: places{turns: map[lane.Key]time.Duration{}}}
		m.classes[tier] = c
	}
	c.rank = rank
	return c
}

// Sweep forgets models nobody has asked for. Call it every few seconds.
func (d *Door) Sweep(now time.Time) {
	for name, m := range d.models {
		if now.Sub(m.used) < ModelKept {
			continue
		}
		if m.waiting() == 0 {
			delete(d.models, name)
		}
	}
}

// waiting is the model's backlog in requests, over all tiers.
func (m *model) waiting() (requests int) {
	for _, c := range m.classes {
		requests += c.share.Requests
	}
	return requests
}

// Judge admits or refuses. It keeps a place for a refused visitor, and nothing else:
// one that is admitted is counted by Shift.
func (d *Door) Judge(v *Visitor, now time.Time) (registry.Admission, Forecast) {
	m := d.model(v.Lane.Model, now)
	c := m.class(v.Lane.Tier, v.Rank)
	at := now.Sub(d.epoch)
	ahead, rate := m.ahead(c.rank, v), m.drain(v.Rate, at, now)
	a := registry.Admission{Reason: reason.OK, Ahead: ahead.Requests}
	if rate <= 0 {
		if v.Full {
			a.Reason, a.RetryAfter = reason.LaneFull, Told(minRetry, v.ID)
		}
		return a, Forecast{}
	}
	a.Wait = seconds(float64(ahead.Tokens) / rate)
	excess := a.Wait + c.margin(a.Wait, v.Limit) - v.Limit
	returned := c.places.take(at, v.Fingerprint)
	switch {
	case v.Full:
		a.Reason, a.RetryAfter = reason.LaneFull, Told(excess, v.ID)
	case ahead.Requests == 0, excess <= 0 && (returned || excess+seconds(m.soon(c, v, rate, at)/rate) <= 0):
		// Nobody is refused an idle engine. A newcomer leaves the room of those who
		// are due while half of what it sees is worked off.
	default:
		a.Reason = reason.Overloaded
		a.RetryAfter, a.Kept = m.keep(c, v, rate, excess, at)
	}
	return a, Forecast{Wait: a.Wait, known: true}
}

// ahead is what would start before the visitor: the backlog of its tier and the
// higher ones, but no more than its lane's fair turn among their lanes.
func (m *model) ahead(rank int, v *Visitor) Share {
	var all Share
	others := 0 // lanes but its own
	for _, c := range m.classes {
		if c.rank <= rank {
			all.add(c.share.Requests, c.share.Tokens)
			others += c.lanes
		}
	}
	if v.Own.Requests > 0 {
		others--
	}
	fair := v.Own
	fair.add(others*(v.Own.Requests+1), others*(v.Own.Tokens+v.Tokens))
	return Share{min(all.Requests, fair.Requests), min(all.Tokens, fair.Tokens)}
}

// soon is the work likely to come back while half of what the visitor sees is worked
// off: of this and higher tiers, but no more than fits beside its lane's fair turns.
func (m *model) soon(c *class, v *Visitor, rate float64, at time.Duration) float64 {
	all, lanes, ahead := 0.0, 0, min(v.Limit/2, maxRetry)
	for _, other := range m.classes {
		if other.rank <= c.rank {
			all += other.places.soon(at, ahead)
			lanes += len(other.places.turns)
		}
	}
	until, known := c.places.turns[v.Lane]
	if known && lanes == 1 {
		return all
	}
	return min(all, c.places.shown*rate*placesShare*min(max(until-at, 0), ahead).Seconds())
}

// keep finds the moment from which on there is room for the visitor, counted from when
// the backlog is worked off far enough, moves it to the whole second the visitor is
// told, and keeps the place. There is room beside all places kept already, or, where
// that is sooner, when its lane has its turn among the lanes that have places.
func (m *model) keep(c *class, v *Visitor, rate float64, excess, at time.Duration) (retry time.Duration, kept bool) {
	rate *= placesShare
	free := m.firstFree(c.rank, v.Tokens, rate, at, excess)
	if turn := m.turn(c, v, rate, excess, at); turn < free {
		free = turn
	}
	if free >= maxRetry {
		return maxRetry, false
	}
	retry = Told(free, v.ID)
	if _, known := c.places.turns[v.Lane]; known || len(c.places.turns) < turnsMost {
		c.places.turns[v.Lane] = at + free
	}
	return retry, c.places.keep(at+retry, v.Fingerprint, v.Tokens)
}

// turn is when the visitor's lane has had its places and this one, each lane that has
// some getting as much. Alone it shares with nobody and has the places that are free.
func (m *model) turn(c *class, v *Visitor, rate float64, excess, at time.Duration) time.Duration {
	lanes := 0
	for _, other := range m.classes {
		if other.rank <= c.rank {
			lanes += len(other.places.turns)
		}
	}
	until, known := c.places.turns[v.Lane]
	if !known {
		lanes++
	}
	if lanes == 1 || len(c.places.turns) >= turnsMost {
		return maxRetry
	}
	return max(excess, until-at) + seconds(float64(lanes*v.Tokens)/rate)
}

// drain is the model's rate: as reported, smoothed; for 30 s the last known; then
// what claims started while more waited, by the time in which more waited; else 0.
func (m *model) drain(reported float64, at time.Duration, now time.Time) float64 {
	if reported > 0 && !math.IsInf(reported, 1) {
		weight := 1.0
		if m.rate > 0 {
			weight = min(1, now.Sub(m.rateAt).Seconds()/rateMemory.Seconds())
		}
		m.rate += weight * (reported - m.rate)
		m.rateAt = now
		return m.rate
	}
	if m.rate > 0 && now.Sub(m.rateAt) <= rateKept {
		return m.rate
	}
	second := int64(at / time.Second)
	tokens, took := 0, time.Millisecond
	for _, s := range m.starts {
		if second-s.second < startsWindow {
			tokens += s.tokens
			took += s.took
		}
	}
	if m.waiting() > 1 {
		took += m.since(at)
	}
	return float64(tokens) / took.Seconds()
}

// since is how long one has waited behind another since the last start. An outage
// counts as the whole window and no more, to be forgotten soon.
func (m *model) since(at time.Duration) time.Duration {
	return min(at-m.behind, startsWindow*time.Second)
}

// Shift counts a request of lane k, whose waiting ones are own: sign 1 when it enters
// the backlog, -1 when it leaves.
func (d *Door) Shift(k lane.Key, rank, tokens, sign int, own *Share, now time.Time) {
	m := d.model(k.Model, now)
	c := m.class(k.Tier, rank)
	before := own.Requests
	own.add(sign, sign*tokens)
	c.share.add(sign, sign*tokens)
	if sign > 0 && m.waiting() == 2 {
		m.behind = now.Sub(d.epoch)
	}
	switch {
	case before == 0:
		c.lanes++
	case own.Requests == 0:
		c.lanes--
	}
}

// Waiting lists the backlog by tier and model, in no order. Classes with nothing are
// listed while they are remembered.
func (d *Door) Waiting() (rows []registry.Backlog) {
	for name, m := range d.models {
		for tier, c := range m.classes {
			rows = append(rows, registry.Backlog{Tier: tier, Model: name, Requests: c.share.Requests, Tokens: c.share.Tokens})
		}
	}
	return rows
}

// Started learns from a request that starts now, after Shift took it out of the
// backlog. again: it was started before, and its wait says nothing about f.
func (d *Door) Started(k lane.Key, tokens int, f Forecast, again bool, opened, now time.Time) {
	m := d.models[k.Model]
	if m == nil {
		return
	}
	// A start counts towards the rate only while more waits: else it says how much
	// came, not how much could go.
	if m.waiting() > 0 {
		at := now.Sub(d.epoch)
		second := int64(at / time.Second)
		s := &m.starts[second%startsWindow]
		if s.second != second {
			*s = starts{second: second}
		}
		s.tokens += tokens
		s.took += m.since(at)
		m.behind = at
	}
	if f.known && !again {
		m.classes[k.Tier].learn(f.Wait, now.Sub(opened))
	}
}

// Left learns from a request that leaves unstarted, where that is later than forecast.
func (d *Door) Left(k lane.Key, f Forecast, opened, now time.Time) {
	if waited := now.Sub(opened); f.known && waited > f.Wait {
		d.models[k.Model].classes[k.Tier].learn(f.Wait, waited)
	}
}

// learn takes in one error, relative so that short and long forecasts share it.
func (c *class) learn(predicted, actual time.Duration) {
	e := min((actual-predicted).Seconds()/(predicted+errorFloor).Seconds(), errorMost)
	c.spread += errorGain * (math.Abs(e-c.bias) - c.spread)
	c.bias += errorGain * (e - c.bias)
}

// margin is what is added to a forecast before it is held against the limit: the
// usual lateness and three times its mean deviation, which is p95 and more. At most half the limit, so that the
// door stays open far enough to learn that things are better.
func (c *class) margin(wait, limit time.Duration) time.Duration {
	relative := max(0, c.bias) + 3*c.spread
	return min(seconds(relative*(wait+errorFloor).Seconds()), limit/2)
}

// Told is when to come back: d with a spread of up to a quarter by the id's hash,
// up to a whole second, 1 to 60 s.
func Told(d time.Duration, id string) time.Duration {
	spread := 1 + 0.25*float64(crc32.ChecksumIEEE([]byte(id)))/math.MaxUint32
	d = min(max(d, minRetry), maxRetry)
	return min(seconds(math.Ceil(spread*d.Seconds())), maxRetry)
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 1e9) * float64(time.Second))
}
