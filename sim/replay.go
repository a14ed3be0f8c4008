// Package sim replays a trace of requests against simulated engines in virtual time
// and measures what each way to let them in makes of it. Penstock's own way is the
// code of production, as sim/gate calls it; the others are queues with a rule. The same
// input gives the same output.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"penstock/sim/random"
	"penstock/sim/traces"
	"penstock/sim/world"

	"golang.org/x/sync/errgroup"
)

// Config is one workload on one profile, under some policies and loads.
type Config struct {
	Workload *traces.Workload
	Profile  *world.Profile
	Policies []Policy
	Loads    []float64 // offered requests over the engines' capacity
	Seed     uint64
	Shifts   int           // places in the trace to begin at; a figure is the median over them
	Warm     time.Duration // not measured
	Span     time.Duration // measured; arrivals go on for Tail after it
	Clients  world.Clients
	Burst    Burst
	Prefix   bool // engines keep prompts' parts that have an id, as vLLM does
	Width    int  // lines of a lane: 1 as in memory, 32 as with a broker
	Workers  int  // worlds at once; 0 = one per CPU. They do not change the result
}

// Tail is how long arrivals go on after the measured span, so that its last requests
// live under the same load. What runs after it is judged by its tokens so far.
const Tail = 30 * time.Second

// DefaultConfig leaves Workload, Profile and Policies to the caller: three shifts of
// four minutes after one that is not measured, and clients that wait 10 s.
func DefaultConfig() Config {
	return Config{
		Loads: []float64{0.7, 1, 1.5, 2, 3}, Seed: 1, Shifts: 3, Warm: time.Minute, Span: 4 * time.Minute,
		Clients: world.Clients{Patience: 10 * time.Second, Obey: 1}, Prefix: true, Width: 1,
	}
}

// Validate names the first field that is out of range, its value and the remedy.
func (c *Config) Validate() error {
	switch {
	case c.Workload == nil || c.Profile == nil || len(c.Policies) == 0 || len(c.Loads) == 0:
		return fmt.Errorf("sim: Workload, Profile, Policies and Loads must be set")
	case c.Shifts < 1 || c.Shifts > 100:
		return fmt.Errorf("sim: Shifts is %d; set 1 to 100", c.Shifts)
	case c.Warm < 0 || c.Warm > time.Hour:
		return fmt.Errorf("sim: Warm is %v; set 0 to 1h", c.Warm)
	case c.Span < time.Second || c.Span > time.Hour:
		return fmt.Errorf("sim: Span is %v; set 1s to 1h", c.Span)
	case c.Width < 1 || c.Width > 256:
		return fmt.Errorf("sim: Width is %d; set 1 to 256", c.Width)
	case c.Clients.Patience < 0:
		return fmt.Errorf("sim: Patience is %v; set 0 (never goes away) or more", c.Clients.Patience)
	case c.Clients.Retries < 0 || c.Clients.Retries > 10:
		return fmt.Errorf("sim: Retries is %d; set 0 to 10", c.Clients.Retries)
	}
	if !(c.Clients.Obey >= 0 && c.Clients.Obey <= 1) {
		return fmt.Errorf("sim: Obey is %g; set 0 to 1", c.Clients.Obey)
	}
	if b := c.Burst; b.Times != 0 && !(b.Times > 1 && b.Times <= 100 && b.For > 0 && b.For <= c.Span/2) {
		return fmt.Errorf("sim: Burst is %v; set 1 to 100 times, for at most half of Span (%v)", b, c.Span)
	}
	for _, l := range c.Loads {
		if !(l > 0 && l <= 20) {
			return fmt.Errorf("sim: a load is %g; set above 0, at most 20", l)
		}
	}
	return nil
}

// scenario is what is not as usual, "" for nothing.
func (c *Config) scenario() string {
	switch {
	case c.Burst.Times > 0:
		return "burst " + c.Burst.String()
	case c.Clients.Retries > 0 && c.Clients.Obey < 1:
		return fmt.Sprintf("retries %d, obey %g", c.Clients.Retries, c.Clients.Obey)
	case c.Clients.Retries > 0:
		return fmt.Sprintf("retries %d", c.Clients.Retries)
	}
	return ""
}

// Row is one setting of a policy at one load.
type Row struct {
	Policy   string  `json:"policy"`
	Workload string  `json:"workload"`
	Profile  string  `json:"profile"`
	Scenario string  `json:"scenario,omitempty"` // burst or retries
	Load     float64 `json:"load"`
	Offered  float64 `json:"offered"` // requests per second
	Figures
	Spread  [2]float64 `json:"goodput_spread"` // lowest and highest over the shifts
	Shifts  []Shift    `json:"shifts,omitempty"`
	Setting string     `json:"setting,omitempty"`
}

// Shift is what two rows of one cell are compared by, shift by shift: the same requests.
type Shift struct {
	Goodput    float64 `json:"goodput"`
	GoodputOwn float64 `json:"goodput_own"`
	TokensOwn  float64 `json:"token_goodput_own"`
}

// Run replays everything and returns the rows by policy, load and setting; see Best. progress hears
// how many of all worlds are done; it is called from several goroutines.
func Run(ctx context.Context, cfg Config, progress func(done, all int)) ([]Row, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	profile := *cfg.Profile
	profile.Engine.PrefixTokens = 0
	if cfg.Prefix && traces.PrefixPart%profile.Engine.BlockSize == 0 {
		profile.Engine.PrefixTokens = traces.PrefixPart
	}
	cfg.Profile = &profile
	c, err := measureCapacity(&cfg)
	if err != nil {
		return nil, err
	}
	var cells []*cell
	for i := range cfg.Policies {
		for _, load := range cfg.Loads {
			for _, s := range cfg.Policies[i].settings(c) {
				cells = append(cells, &cell{cfg: &cfg, policy: &cfg.Policies[i], setting: s, load: load, rate: load * c.requests * cfg.Profile.Speed(), shifts: make([]Figures, cfg.Shifts)})
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(cfg.Workers, runtime.NumCPU()))
	var done atomic.Int64
	for _, cell := range cells {
		for shift := range cfg.Shifts {
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				defer func() { progress(int(done.Add(1)), len(cells)*cfg.Shifts) }()
				return cell.run(shift)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	rows := make([]Row, len(cells))
	for i, c := range cells {
		rows[i] = c.row()
	}
	return rows, nil
}

// measureCapacity is the median over the shifts.
func measureCapacity(cfg *Config) (capacity, error) {
	var all []capacity
	for shift := range cfg.Shifts {
		arrivals := cfg.arrivals(20, shift)
		c, err := saturate(cfg.Profile, arrivals, cfg.Warm, cfg.Span)
		if err != nil {
			return c, err
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b capacity) int { return cmp.Compare(a.requests, b.requests) })
	return all[len(all)/2], nil
}

func (c *Config) end() time.Duration { return c.Warm + c.Span + Tail }

// arrivals at rate; what the model could not hold is cut to fit.
func (c *Config) arrivals(rate float64, shift int) []traces.Arrival {
	a := c.Workload.Arrivals(rate, c.end(), c.Seed, shift, c.Shifts)
	most := c.Profile.Engine.MaxModelLen
	for i := range a {
		a[i].Prompt = min(a[i].Prompt, most-1)
		a[i].Output = min(a[i].Output, most-a[i].Prompt)
	}
	return a
}

// cell is one setting of a policy at one load.
type cell struct {
	cfg     *Config
	policy  *Policy
	setting setting
	load    float64
	rate    float64
	shifts  []Figures
}

func (c *cell) run(shift int) error {
	usual := c.cfg.arrivals(c.rate, shift)
	arrivals := c.cfg.backlog(c.cfg.burst(usual, c.rate, shift))
	t, err := c.play(shift, arrivals)
	if err != nil {
		return err
	}
	f := t.figures(arrivals)
	if c.cfg.Burst.Times > 0 {
		without, err := c.play(shift, usual)
		if err != nil {
			return err
		}
		calm, _, _ := without.outcomes(usual)
		stormy, _, _ := t.outcomes(arrivals)
		r := recovery(calm, stormy, c.cfg.burstEnd(), c.cfg.Warm+c.cfg.Span).Seconds()
		f.Recover = &r
	}
	if c.cfg.Workload.Abuser {
		others := slices.DeleteFunc(slices.Clone(arrivals), func(a traces.Arrival) bool { return a.Tenant == 0 })
		without, err := c.play(shift, others)
		if err != nil {
			return err
		}
		f.Fairness.compare(f.Tenants, without.figures(others).Tenants)
	}
	if c.cfg.Workload.Low > 0 {
		without, err := c.play(shift, usual)
		if err != nil {
			return err
		}
		f.Low = t.lowTier(without)
	}
	c.shifts[shift] = f
	return nil
}

// play is one world from beginning to end.
func (c *cell) play(shift int, arrivals []traces.Arrival) (*tally, error) {
	p := *c.cfg.Profile
	if c.setting.engine != nil {
		c.setting.engine(&p.Engine)
	}
	w, err := world.New(&p, c.cfg.Clients, random.Mix(c.cfg.Seed, uint64(shift)))
	if err != nil {
		return nil, err
	}
	t := newTally(w, c.cfg)
	front, err := c.setting.front(w, t)
	if err != nil {
		return nil, err
	}
	w.Run(front, arrivals, c.cfg.end())
	return t, nil
}

// row is the cell's medians over the shifts.
func (c *cell) row() Row {
	least, most := c.shifts[0].Goodput, c.shifts[0].Goodput
	var shifts []Shift
	for _, f := range c.shifts {
		shifts = append(shifts, Shift{f.Goodput, f.GoodputOwn, f.TokensOwn})
		least, most = min(least, f.Goodput), max(most, f.Goodput)
	}
	return Row{
		Policy: c.policy.Name, Workload: c.cfg.Workload.Name, Profile: c.cfg.Profile.Name, Scenario: c.cfg.scenario(),
		Load: c.load, Offered: c.rate, Figures: median(c.shifts), Spread: [2]float64{least, most}, Shifts: shifts, Setting: c.setting.name,
	}
}
