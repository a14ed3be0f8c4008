// Package neighbours is the fleet as gossip shows it to an agent or a gateway: the rows
// of all engines, which gateway goes by which policy, and the aborts that travel.
package neighbours

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/abort"
	"penstock/cmd/penstock/exit"
	"penstock/fleet"
	"penstock/gossip"
)

const (
	// rowsEvery is how old a snapshot of the rows may be: gateways look per request.
	rowsEvery = 20 * time.Millisecond
	// sendLeast and sendMost bound --gossip-interval.
	sendLeast, sendMost = 50 * time.Millisecond, time.Second
	// gatewayEvery is how often a gateway says which policy it goes by.
	gatewayEvery = 2 * time.Second
	// mostEngines is what rows from each to all are built and measured for.
	mostEngines = 100
)

// Options are the flags of Flags, checked.
type Options struct {
	Address  string // HOST:PORT of gossip, "" for none
	Gossip   gossip.Config
	interval time.Duration // an agent sends its row so often; sendLeast to sendMost
}

// Flags adds gossip's flags to those of an agent or a gateway; address is the default.
func Flags(f *pflag.FlagSet, address string) {
	f.String("gossip", address, `address of gossip, TCP and UDP; "" for none`)
	f.String("gossip-advertise", "", "IP[:PORT] that other members reach this one at (default: --gossip's, or the default route's)")
	f.StringSlice("join", nil, "HOST:PORT of members to join, such as a DNS name that stands for all agents")
	f.String("gossip-key-file", "", "file with the fleet's base64 keys, a line each, the first encrypts; read again at SIGHUP")
	f.String("gossip-label", "penstock", "name of the fleet: packets of others are dropped")
	f.StringSlice("gossip-cidr", nil, "networks members may come from (default: any)")
	f.Duration("gossip-interval", 200*time.Millisecond, "how often an agent sends its engine's row")
}

// Read reads the flags of Flags for the member name. An error names the flag, its value
// and the fix.
func Read(f *pflag.FlagSet, name string) (*Options, error) {
	text := func(name string) string { v, _ := f.GetString(name); return v }
	o := &Options{Address: text("gossip"), Gossip: gossip.DefaultConfig()}
	o.interval, _ = f.GetDuration("gossip-interval")
	if o.interval < sendLeast || o.interval > sendMost {
		return nil, fmt.Errorf("--gossip-interval %v: want %v to %v", o.interval, sendLeast, sendMost)
	}
	o.Gossip.Name, o.Gossip.Label, o.Gossip.KeyFile, o.Gossip.Advertise = name, text("gossip-label"), text("gossip-key-file"), text("gossip-advertise")
	o.Gossip.Join, _ = f.GetStringSlice("join")
	o.Gossip.CIDRs, _ = f.GetStringSlice("gossip-cidr")
	if o.Address == "" {
		if len(o.Gossip.Join) > 0 {
			return nil, fmt.Errorf("--join %q needs --gossip HOST:PORT", o.Gossip.Join)
		}
		return o, nil
	}
	return o, o.Gossip.Validate()
}

// Host is where gossip says that others reach this process; "" without gossip.
func (o *Options) Host() string {
	if o.Address == "" {
		return ""
	}
	for _, at := range []string{o.Gossip.Advertise, o.Address} {
		if host, _, err := net.SplitHostPort(at); err == nil {
			return cmp.Or(host, "0.0.0.0")
		} else if at != "" { // an IP without a port
			return at
		}
	}
	return ""
}

// Neighbours is the fleet as gossip shows it. All of it works on nil, which is a process
// without gossip. It translates between gossip's bytes, fleet's table and abort's router.
type Neighbours struct {
	opts   *Options
	log    *slog.Logger
	gossip *gossip.Gossip
	listen *gossip.Listener
	router *abort.Router
	keys   atomic.Pointer[abort.Keys]
	cancel func(id, attempt string) // an abort arrived
	own    func(now time.Time) fleet.Row

	mu    sync.Mutex // guards table
	table *fleet.Table

	seen   atomic.Pointer[snapshot]
	warned atomic.Bool // of more than mostEngines
	rows   *prometheus.CounterVec
	aborts *prometheus.CounterVec
}

// snapshot is the rows as of a moment. Nobody changes it.
type snapshot struct {
	at             time.Time
	rows, gateways []fleet.Row
}

// New opens the gossip address; nil where there is none. own is the row of this
// process's engine, or of a gateway; nil for who has none. cancel stops a request that
// runs here.
func New(opts *Options, own func(time.Time) fleet.Row, cancel func(id, attempt string), log *slog.Logger, metrics prometheus.Registerer) (*Neighbours, error) {
	if opts.Address == "" {
		return nil, nil
	}
	n := &Neighbours{opts: opts, log: log, own: own, cancel: cancel, router: abort.NewRouter(opts.Gossip.Name)}
	owner := uint64(0)
	if own != nil {
		owner = fleet.ID(opts.Gossip.Name)
	}
	n.table = fleet.NewTable(owner, uint64(time.Now().UnixMilli()))
	n.metrics(metrics)
	if err := n.readKeys(); err != nil {
		return nil, fmt.Errorf("--gossip-key-file: %w", err)
	}
	var err error
	if n.gossip, err = gossip.New(opts.Gossip, n, n.receive, log, metrics); err != nil {
		return nil, err
	}
	if n.listen, err = gossip.Listen(opts.Address); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, exit.Usagef("--gossip %s is in use by another process: choose another address with --gossip", opts.Address)
		}
		return nil, exit.Usagef("--gossip %s: %w", opts.Address, err)
	}
	return n, nil
}

func (n *Neighbours) metrics(reg prometheus.Registerer) {
	n.rows = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_gossip_rows_total", Help: "Rows heard, by what became of them."}, []string{"outcome"})
	n.aborts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_gossip_aborts_total", Help: "Aborts heard by gossip, by what became of them."}, []string{"outcome"})
	for _, outcome := range []string{"taken", "refused"} {
		n.rows.WithLabelValues(outcome)
	}
	n.aborts.WithLabelValues("delivered")
	n.aborts.WithLabelValues("known")
	for _, f := range abort.Faults() {
		n.aborts.WithLabelValues(f.String())
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_gossip_row_age_seconds", Help: "Age of the oldest row that is not forgotten."}, func() float64 {
		now, oldest := time.Now(), time.Duration(0)
		for _, r := range n.Rows() {
			oldest = max(oldest, now.Sub(r.At))
		}
		return oldest.Seconds()
	})
	reg.MustRegister(n.rows, n.aborts, age)
}

// readKeys derives the abort messages' keys from the gossip keys.
func (n *Neighbours) readKeys() error {
	var secrets [][]byte
	if n.opts.Gossip.KeyFile != "" {
		var err error
		if secrets, err = gossip.ReadKeys(n.opts.Gossip.KeyFile); err != nil {
			return err
		}
	}
	keys, err := abort.NewKeys(secrets...)
	if err == nil {
		n.keys.Store(&keys)
	}
	return err
}

// Reload reads the key file again; after an error the keys are the old ones.
func (n *Neighbours) Reload() error {
	if n == nil {
		return nil
	}
	if err := n.gossip.Reload(); err != nil {
		return err
	}
	return n.readKeys()
}

// KeyFile is the file of gossip's keys; "" = none, or no gossip.
func (n *Neighbours) KeyFile() string {
	if n == nil {
		return ""
	}
	return n.opts.Gossip.KeyFile
}

// Run gossips until ctx ends; an agent sends its row every interval, a gateway now and
// then.
func (n *Neighbours) Run(ctx context.Context) error {
	if n == nil {
		<-ctx.Done()
		return nil
	}
	if n.own != nil {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { n.send(ctx) })
	}
	return n.gossip.Run(ctx, n.listen)
}

// send starts whenever the process did: rows that all nodes send at whole intervals of
// the clock would wake each node once for all of them, and measured on a busy machine
// they come up to seconds late.
func (n *Neighbours) send(ctx context.Context) {
	every := n.opts.interval
	if n.own(time.Now()).Gateway {
		every = gatewayEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	b := make([]byte, 0, fleet.MaxSize)
	for {
		now := time.Now()
		n.mu.Lock()
		row := n.table.Own(now, n.own(now))
		n.mu.Unlock()
		b = fleet.AppendRow(b[:0], &row, now)
		_ = n.gossip.Send(b) // a row is never too long
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Close is for neighbours that never run: Run closes the listener too.
func (n *Neighbours) Close() {
	if n != nil {
		_ = n.listen.Close()
	}
}

// Rows are all engines heard of in the last minute, the own one too. The caller
// changes nothing in it.
func (n *Neighbours) Rows() []fleet.Row {
	if n == nil {
		return nil
	}
	return n.look().rows
}

// Gateways are the rows of gateways, as Rows are of engines.
func (n *Neighbours) Gateways() []fleet.Row {
	if n == nil {
		return nil
	}
	return n.look().gateways
}

func (n *Neighbours) look() *snapshot {
	now := time.Now()
	if s := n.seen.Load(); s != nil && now.Sub(s.at) < rowsEvery {
		return s
	}
	n.mu.Lock()
	s := &snapshot{at: now, rows: n.table.Rows(now)}
	n.mu.Unlock()
	s.rows = slices.DeleteFunc(s.rows, func(r fleet.Row) bool {
		if r.Gateway {
			s.gateways = append(s.gateways, r)
		}
		return r.Gateway
	})
	n.seen.Store(s)
	if len(s.rows) > mostEngines {
		n.warn(s)
	}
	return s
}

// warn says once that the fleet is larger than what was measured. Rows of engines that
// are gone are no engines.
func (n *Neighbours) warn(s *snapshot) {
	engines := 0
	for i := range s.rows {
		if s.at.Sub(s.rows[i].At) <= fleet.StaleAfter {
			engines++
		}
	}
	if engines > mostEngines && !n.warned.Swap(true) {
		n.log.Error("more engines gossip than penstock is measured for: rows may come late, and each node sends one to every other; raise --gossip-interval or split the fleet by --gossip-label",
			"engines", engines, "measured", mostEngines)
	}
}

// Abort tells all agents that a request is over. It never waits: the record's cancel
// is the truth, this is only faster.
func (n *Neighbours) Abort(id string) {
	if n == nil {
		return
	}
	m := n.router.Message(id, "", "")
	n.router.Route(time.Now(), m)
	b, err := abort.Append(nil, &m, *n.keys.Load())
	if err == nil {
		err = n.gossip.Broadcast(b)
	}
	if err != nil {
		n.log.Debug("abort not gossiped", "id", id, "err", err)
	}
}

// receive takes what another member sent.
func (n *Neighbours) receive(msg []byte) { _ = n.take(time.Now(), msg) }

// take takes one row, table or abort. Gossip tells aborts on by itself.
func (n *Neighbours) take(now time.Time, msg []byte) error {
	if len(msg) > 0 && msg[0] == abort.Kind {
		m, err := abort.Parse(msg, *n.keys.Load())
		if err != nil {
			var fault abort.Fault
			errors.As(err, &fault)
			n.aborts.WithLabelValues(fault.String()).Inc()
			return err
		}
		if deliver, _ := n.router.Route(now, m); !deliver {
			n.aborts.WithLabelValues("known").Inc()
			return nil
		}
		n.aborts.WithLabelValues("delivered").Inc()
		if n.cancel != nil {
			n.cancel(m.ID, m.Attempt)
		}
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if len(msg) > 0 && msg[0] == fleet.KindTable {
		err = n.table.Merge(now, msg)
	} else {
		err = n.table.Receive(now, msg)
	}
	if err != nil {
		n.rows.WithLabelValues("refused").Inc()
		return err
	}
	n.rows.WithLabelValues("taken").Inc()
	return nil
}
