// Package scraper reads one engine's metrics page every 50 ms and turns it into
// scheduler.Samples.
//
// A page is taken whole or not at all: a name that is missing, a value that is
// not finite or out of range, a page cut short make an Error and no Sample, so
// that nothing which was not read can look like zero. DESIGN.md says what a page
// may contain and why it is read this way.
package scraper

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/scheduler"
)

const (
	// MaxInterval is the longest time between two scrapes, however slow the
	// engine answers: an engine counts as blind after a second without a sample,
	// so the scraper must not sleep that long.
	MaxInterval = 800 * time.Millisecond

	// paused is the gap between two ticks from which the process itself must have
	// been stopped: MaxInterval and a tick of the grid are below it.
	paused = time.Second
)

// Config says where the page is and how hard it is read.
type Config struct {
	// URL of the engine: http://host:port, https://host:port or unix:///path.sock.
	URL string
	// Interval between two scrapes while the engine answers fast: 10 ms to 500 ms.
	Interval time.Duration
	// Timeout of one scrape, from dialing to the last byte: 1 ms to 500 ms.
	Timeout time.Duration
	// MaxPage is the longest page that is read, in bytes: 1 KiB to 64 MiB. One
	// engine's page is 48 KB, that of eight 337 KB.
	MaxPage int
	// CheckEvery is how often a full page is compared with a second parser, and how
	// often a lasting problem is logged again: at least 1 s.
	CheckEvery time.Duration
}

// DefaultConfig reads every 50 ms; URL is left to the caller.
func DefaultConfig() Config {
	return Config{
		Interval:   50 * time.Millisecond,
		Timeout:    250 * time.Millisecond,
		MaxPage:    4 << 20,
		CheckEvery: 10 * time.Second,
	}
}

// Validate names the first field that cannot be used, its value and the remedy.
func (c Config) Validate() error {
	if _, err := c.pageURL(); err != nil {
		return err
	}
	switch {
	case c.Interval < 10*time.Millisecond || c.Interval > 500*time.Millisecond:
		return fmt.Errorf("scraper: interval %v: use 10ms to 500ms", c.Interval)
	case c.Timeout < time.Millisecond || c.Timeout > 500*time.Millisecond:
		return fmt.Errorf("scraper: timeout %v: use 1ms to 500ms", c.Timeout)
	case c.MaxPage < 1<<10 || c.MaxPage > 64<<20:
		return fmt.Errorf("scraper: max page %d: use 1024 to %d bytes", c.MaxPage, 64<<20)
	case c.CheckEvery < time.Second:
		return fmt.Errorf("scraper: check every %v: use 1s or more", c.CheckEvery)
	}
	return nil
}

func (c Config) pageURL() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("scraper: url %q: %w", c.URL, err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.User == nil:
	default:
		return nil, fmt.Errorf("scraper: url %q: use http://host:port or unix:///path.sock", c.URL)
	}
	return u, nil
}

// Scraper polls one engine. Its callbacks run on Run's goroutine.
type Scraper struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	observe func(scheduler.Sample)
	bad     func(at time.Time, err error)
	fetch   func(ctx context.Context, filtered bool) (page, error)
	hangUp  func() // closes the kept connection

	interval atomic.Int64 // nanoseconds between scrapes now; read by Interval

	// The rest belongs to Run.
	pace    pace
	read    reading
	history history

	filtered bool      // the engine serves a page of only the names we need
	settled  bool      // filtered is decided for this life of the engine
	checked  time.Time // last contract check; zero: due now
	contract contract  // the last one logged
	problem  Problem   // the last one logged
	loggedAt time.Time // when
	badSince time.Time // zero while samples are good
}

// New makes a Scraper that calls observe with each good sample and bad with why
// there is none, at the time when that was known; both on Run's goroutine, which
// waits for them. bad's errors are *Error. reg comes with the labels that tell
// engines apart. An error means an invalid cfg or metrics that are registered
// already.
func New(cfg Config, reg prometheus.Registerer, log *slog.Logger, observe func(scheduler.Sample), bad func(at time.Time, err error)) (*Scraper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	c := newClient(cfg)
	s := &Scraper{
		cfg: cfg, log: log, metrics: m, observe: observe, bad: bad,
		fetch: c.fetch, hangUp: c.http.CloseIdleConnections,
		pace: pace{interval: cfg.Interval},
	}
	s.interval.Store(int64(cfg.Interval))
	return s, nil
}

// Interval is the time between two scrapes at present: Config.Interval, longer
// while the engine answers slowly, at most MaxInterval. "Three polls" is three of
// these. Safe for concurrent use.
func (s *Scraper) Interval() time.Duration { return time.Duration(s.interval.Load()) }

// Run polls until ctx ends and returns nil. One scrape is in flight at a time;
// ticks that pass meanwhile are skipped, never made up.
func (s *Scraper) Run(ctx context.Context) error {
	defer s.hangUp()
	hash := fnv.New64a()
	hash.Write([]byte(s.cfg.URL))
	start := time.Now()
	grid := start.Add(time.Duration(hash.Sum64() % uint64(s.cfg.Interval)))
	timer := time.NewTimer(time.Until(grid))
	defer timer.Stop()
	// due, not the time a timer fires at, is what the next tick counts from: a timer is
	// always a little late.
	for last, due := grid, grid; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		if gap := now.Sub(last); gap > paused {
			s.log.Warn("metrics polling stood still", "url", s.cfg.URL, "gap", gap)
		}
		spent := s.tick(ctx)
		if ctx.Err() != nil {
			return nil
		}
		gap := s.pace.spent(spent, now.Sub(last))
		s.interval.Store(int64(gap))
		last, due = now, nextTick(grid, due.Add(gap), time.Now(), s.cfg.Interval)
		timer.Reset(time.Until(due))
	}
}

// tick reads one page, hands on what it says and returns how long the engine was
// busy with us.
func (s *Scraper) tick(ctx context.Context) time.Duration {
	asked := time.Now()
	check := s.checked.IsZero() || asked.Sub(s.checked) >= s.cfg.CheckEvery
	if check && s.filtered {
		s.checked = asked // a full page that takes too long must not blind us: next try at the next check
	}
	p, spent, err := s.get(ctx, s.filtered && !check)
	at := time.Now()
	var v values
	if err == nil {
		v, err = s.read.page(p)
	}
	if ctx.Err() != nil {
		return spent // the end, not the engine's fault
	}
	if err != nil {
		s.fail(at, err)
		return spent
	}
	sample := s.history.sample(&v, asked, at)
	s.good(at)
	s.observe(sample)
	if sample.Restarted {
		s.forget()
		return spent
	}
	if check {
		s.checked = at
		s.check(p, &v)
		if !s.settled {
			spent += s.probe(ctx, len(p.body), &v)
		}
		s.tell(&v)
	}
	return spent
}

func (s *Scraper) get(ctx context.Context, filtered bool) (page, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	from := time.Now()
	p, err := s.fetch(ctx, filtered)
	spent := time.Since(from)
	s.metrics.seconds.Observe(spent.Seconds())
	return p, spent, err
}

// forget makes the next tick read the full page and look again at what the engine
// can do: it may be another one.
func (s *Scraper) forget() {
	s.filtered, s.settled, s.checked = false, false, time.Time{}
}

func (s *Scraper) fail(at time.Time, err error) {
	e := asError(err)
	s.metrics.errors[e.Problem].Inc()
	if e.Problem != Timeout { // a slow engine is still the same one
		s.forget()
	}
	if s.badSince.IsZero() {
		s.badSince = at
	}
	quiet := s.cfg.CheckEvery
	if e.Problem != s.problem {
		quiet = time.Second
	}
	if s.loggedAt.IsZero() || at.Sub(s.loggedAt) >= quiet {
		s.log.Warn("no sample from the metrics page", "url", s.cfg.URL, "problem", e.Problem.String(), "err", e)
		s.problem, s.loggedAt = e.Problem, at
	}
	s.bad(at, e)
}

func (s *Scraper) good(at time.Time) {
	if !s.badSince.IsZero() && at.Sub(s.badSince) >= time.Second {
		s.log.Info("metrics page is good again", "url", s.cfg.URL, "after", at.Sub(s.badSince))
	}
	s.badSince = time.Time{}
}

// probe asks once for the page of only our names and uses it from now on when it
// says what the full page of fullLen bytes says and is not that page again.
func (s *Scraper) probe(ctx context.Context, fullLen int, full *values) time.Duration {
	p, spent, err := s.get(ctx, true)
	var v values
	if err == nil {
		v, err = s.read.page(p)
	}
	if e := (*Error)(nil); errors.As(err, &e) && e.Problem == Timeout {
		return spent // says nothing; asked again with the next check
	}
	s.settled = true
	s.filtered = err == nil && v.replaces(full, len(p.body), fullLen)
	return spent
}
