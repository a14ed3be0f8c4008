package memory

import (
	"hash/crc32"
	"math"
	"time"

	"penstock/reason"
	"penstock/registry"
)

const (
	rateMemory    = time.Second      // how far back the smoothed drain rate looks
	rateKept      = 30 * time.Second // how long the last known rate serves when none is reported
	startsWindow  = 10               // seconds of starts that stand in for a rate after that
	modelKept     = 10 * time.Minute // an idle model's rate and errors are remembered
	noEngineRetry = 5 * time.Second
	minRetry      = time.Second
	maxRetry      = 60 * time.Second

	errorGain  = 0.1         // EWMA of the forecast's error, about the last ten starts
	errorMost  = 2           // an outage teaches no more than that, to be forgotten soon
	errorFloor = time.Second // added to a forecast before its error is taken relative to it
)

// share is a part of the backlog.
type share struct{ requests, tokens int }

func (s *share) add(requests, tokens int) {
	s.requests += requests
	s.tokens += tokens
}

// forecast is what Open predicted for a request.
type forecast struct {
	wait  time.Duration
	known bool // false: no rate was known, nothing is learned from it
}

// door predicts when a newcomer would start and refuses what is not worth it. It
// is guarded by the Registry's mutex.
type door struct {
	epoch  time.Time
	models map[string]*model
}

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
	share        share // what waits
	lanes        int   // lanes with something waiting
	bias, spread float64
	places       places
}

// visitor is a request at the door.
type visitor struct {
	id          string
	fingerprint uint64
	tokens      int
	limit       time.Duration
	own         share   // what of its lane waits
	rate        float64 // as reported, 0 = not known
	full        bool    // its lane or the memory is full
}

// model finds or makes a model's entry.
func (d *door) model(name string, now time.Time) *model {
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
		c = &class{}
		m.classes[tier] = c
	}
	c.rank = rank
	return c
}

// sweep forgets models nobody has asked for.
func (d *door) sweep(now time.Time) {
	for name, m := range d.models {
		if now.Sub(m.used) < modelKept {
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
		requests += c.share.requests
	}
	return requests
}

// judge admits or refuses. It keeps a place for a refused visitor, and nothing else.
func (d *door) judge(m *model, c *class, v visitor, now time.Time) (registry.Admission, forecast) {
	at := now.Sub(d.epoch)
	ahead, rate := m.ahead(c.rank, v), m.drain(v.rate, at, now)
	a := registry.Admission{Reason: reason.OK, Ahead: ahead.requests}
	if rate <= 0 {
		if v.full {
			a.Reason, a.RetryAfter = reason.LaneFull, told(minRetry, v.id)
		}
		return a, forecast{}
	}
	a.Wait = seconds(float64(ahead.tokens) / rate)
	excess := a.Wait + c.margin(a.Wait, v.limit) - v.limit
	returned := c.places.take(at, v.fingerprint)
	switch {
	case v.full:
		a.Reason, a.RetryAfter = reason.LaneFull, told(excess, v.id)
	case ahead.requests == 0, excess <= 0 && (returned || excess+seconds(m.soon(c.rank, at, v.limit/2)/rate) <= 0):
		// Nobody is refused an idle engine. A newcomer leaves the room of those who
		// are due while half of what it sees is worked off.
	default:
		a.Reason = reason.Overloaded
		a.RetryAfter, a.Kept = m.keep(c, v, rate, excess, at)
	}
	return a, forecast{wait: a.Wait, known: true}
}

// ahead is what would start before the visitor: the backlog of its tier and the
// higher ones, but no more than its lane's fair turn among their lanes.
func (m *model) ahead(rank int, v visitor) share {
	var all share
	others := 0 // lanes but its own
	for _, c := range m.classes {
		if c.rank <= rank {
			all.add(c.share.requests, c.share.tokens)
			others += c.lanes
		}
	}
	if v.own.requests > 0 {
		others--
	}
	fair := v.own
	fair.add(others*(v.own.requests+1), others*(v.own.tokens+v.tokens))
	return share{min(all.requests, fair.requests), min(all.tokens, fair.tokens)}
}

// soon is the work of this and higher tiers likely to come back before at + ahead.
func (m *model) soon(rank int, at, ahead time.Duration) (tokens float64) {
	for _, c := range m.classes {
		if c.rank <= rank {
			tokens += c.places.soon(at, ahead)
		}
	}
	return tokens
}

// keep finds the first moment from which on there is room for the visitor beside
// all places kept already, counted from when the backlog is worked off far enough,
// moves it to the whole second the visitor is told, and keeps the place.
func (m *model) keep(c *class, v visitor, rate float64, excess, at time.Duration) (retry time.Duration, kept bool) {
	free, ok := m.firstFree(c.rank, v.tokens, rate*placesShare, at, excess)
	if !ok {
		return maxRetry, false
	}
	retry = told(free, v.id)
	return retry, c.places.keep(at+retry, v.fingerprint, v.tokens)
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

// started learns from a request that starts now.
func (d *door) started(rec *record, now time.Time) {
	m := d.models[rec.lane.Model]
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
		s.tokens += rec.tokens
		s.took += m.since(at)
		m.behind = at
	}
	if rec.forecast.known && rec.tries == 0 {
		m.classes[rec.lane.Tier].learn(rec.forecast.wait, now.Sub(rec.opened))
	}
}

// censored learns from a request that left unstarted after more than its forecast.
func (d *door) censored(rec *record, now time.Time) {
	if waited := now.Sub(rec.opened); rec.forecast.known && waited > rec.forecast.wait {
		d.models[rec.lane.Model].classes[rec.lane.Tier].learn(rec.forecast.wait, waited)
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

// told is when to come back: d with a spread of up to a quarter by the id's hash,
// up to a whole second, 1 to 60 s.
func told(d time.Duration, id string) time.Duration {
	spread := 1 + 0.25*float64(crc32.ChecksumIEEE([]byte(id)))/math.MaxUint32
	d = min(max(d, minRetry), maxRetry)
	return min(seconds(math.Ceil(spread*d.Seconds())), maxRetry)
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 1e9) * float64(time.Second))
}
