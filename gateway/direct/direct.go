// Package direct tells the agent that runs a request that it is over, by gRPC: the
// fastest of the ways an abort travels, and the only one that needs neither Redis nor
// gossip. The record's cancel is the truth; a call that fails is counted and forgotten.
package direct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	penstockv1 "penstock/proto/penstock/v1"
)

// Config bounds the calls.
type Config struct {
	Within      time.Duration // of one call, the connection's making included
	InFlight    int           // calls at once; one more is dropped
	Connections int           // kept, one per address; the one not used for longest gives way
	Idle        time.Duration // a connection not used for so long is closed
	Files       Files         // for agents on other hosts; without CA none of them is called
}

// DefaultConfig allows for 2,560 aborts/s of agents that all hang.
func DefaultConfig() Config {
	return Config{Within: 100 * time.Millisecond, InFlight: 256, Connections: 1024, Idle: 5 * time.Minute}
}

// Validate names the field, the value and what to set instead.
func (c Config) Validate() error {
	switch {
	case c.Within <= 0 || c.Within > time.Second:
		return fmt.Errorf("direct: Within is %v; set a duration up to 1s", c.Within)
	case c.InFlight <= 0:
		return fmt.Errorf("direct: InFlight is %d; set 1 or more", c.InFlight)
	case c.Connections < c.InFlight:
		return fmt.Errorf("direct: Connections is %d; set InFlight (%d) or more", c.Connections, c.InFlight)
	case c.Idle < time.Second:
		return fmt.Errorf("direct: Idle is %v; set 1s or more", c.Idle)
	}
	return c.Files.Validate()
}

// What became of an abort, the values of the label.
const (
	stopped   = "stopped"    // it ran there
	notThere  = "not_there"  // another way was faster, or it ended
	noAddress = "no_address" // the directory has none for that node
	noCert    = "no_cert"    // an agent on another host takes none without a certificate
	dropped   = "dropped"    // InFlight calls are under way, or Run does not run
	timedOut  = "timeout"
	denied    = "denied" // the agent does not take the certificate
	failed    = "failed"
)

var outcomes = [...]string{stopped, notThere, noAddress, noCert, dropped, timedOut, denied, failed}

// Aborts makes the calls.
type Aborts struct {
	cfg     Config
	secure  credentials.TransportCredentials // nil: agents on this host alone
	log     *slog.Logger
	counts  map[string]prometheus.Counter // never written after New
	calling chan struct{}                 // as many as calls under way, at most InFlight
	calls   sync.WaitGroup

	mu    sync.Mutex // guards what follows
	ctx   context.Context
	conns map[string]*connection // nil unless Run runs
}

type connection struct {
	*grpc.ClientConn
	used time.Time
}

// New reads the files and starts nothing.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Aborts, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Aborts{cfg: cfg, log: log, counts: map[string]prometheus.Counter{}, calling: make(chan struct{}, cfg.InFlight)}
	if cfg.Files.CA != "" {
		var err error
		if a.secure, err = newRenewed(cfg.Files); err != nil {
			return nil, err
		}
	}
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_direct_aborts_total", Help: "Aborts told to the agent that runs the request, by what became of them.",
	}, []string{"outcome"})
	for _, o := range outcomes {
		a.counts[o] = total.WithLabelValues(o)
	}
	return a, reg.Register(total)
}

// Run lets calls be made until ctx ends, then waits for those under way and closes
// the connections. It may be called once.
func (a *Aborts) Run(ctx context.Context) error {
	a.mu.Lock()
	a.ctx, a.conns = ctx, map[string]*connection{}
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	conns := a.conns
	a.conns = nil // no further call begins
	a.mu.Unlock()
	a.calls.Wait()
	for _, c := range conns {
		_ = c.Close()
	}
	return nil
}

// Abort tells the agent at address that request id is over, whichever attempt of it
// runs there. It never waits. "" is an address that is not known.
func (a *Aborts) Abort(address, id string) {
	if address == "" {
		a.counts[noAddress].Inc()
		return
	}
	creds := a.secure
	if loopback(address) {
		creds = insecure.NewCredentials() // its agent takes orders from this host without a certificate
	}
	if creds == nil {
		a.counts[noCert].Inc()
		return
	}
	select {
	case a.calling <- struct{}{}:
	default:
		a.counts[dropped].Inc()
		return
	}
	ctx, conn, err := a.begin(address, creds)
	if conn == nil {
		<-a.calling
		if err != nil {
			a.count(address, id, failed, err)
		} else {
			a.counts[dropped].Inc()
		}
		return
	}
	go func() {
		defer a.calls.Done()
		defer func() { <-a.calling }()
		a.call(ctx, conn, address, id)
	}()
}

// begin finds or makes the connection to address and counts the call as under way;
// without a connection there is none.
func (a *Aborts) begin(address string, creds credentials.TransportCredentials) (context.Context, *grpc.ClientConn, error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conns == nil {
		return nil, nil, nil
	}
	c := a.conns[address]
	if c == nil {
		a.makeRoom(now)
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithIdleTimeout(a.cfg.Idle),
			// An agent that is back is called again within seconds, and one whose host
			// vanished is noticed.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 5 * time.Second},
				MinConnectTimeout: 2 * time.Second,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
		if err != nil {
			return nil, nil, err
		}
		c = &connection{ClientConn: conn}
		a.conns[address] = c
	}
	c.used = now
	a.calls.Add(1)
	return a.ctx, c.ClientConn, nil
}

// makeRoom for one more connection: those idle go, and where that does not help, the
// one not used for longest. The caller holds mu. An idle one holds no socket before
// that: grpc has closed it.
func (a *Aborts) makeRoom(now time.Time) {
	oldest := ""
	for address, c := range a.conns {
		if now.Sub(c.used) > a.cfg.Idle {
			_ = c.Close()
			delete(a.conns, address)
		} else if oldest == "" || c.used.Before(a.conns[oldest].used) {
			oldest = address
		}
	}
	if len(a.conns) >= a.cfg.Connections {
		_ = a.conns[oldest].Close()
		delete(a.conns, oldest)
	}
}

func (a *Aborts) call(ctx context.Context, conn *grpc.ClientConn, address, id string) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Within)
	defer cancel()
	answer, err := penstockv1.NewAgentServiceClient(conn).Abort(ctx, &penstockv1.AbortRequest{Id: id})
	outcome := notThere
	switch code := status.Code(err); {
	case err == nil && answer.GetRunning():
		outcome = stopped
	case err == nil:
	case code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		outcome = timedOut
	case code == codes.PermissionDenied || code == codes.Unauthenticated:
		outcome = denied
	default:
		outcome = failed
	}
	a.count(address, id, outcome, err)
}

func (a *Aborts) count(address, id, outcome string, err error) {
	a.counts[outcome].Inc()
	if err != nil {
		a.log.Debug("direct abort failed", "id", id, "address", address, "outcome", outcome, "err", err)
	}
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, _ := netip.ParseAddr(host)
	return host == "localhost" || ip.Unmap().IsLoopback()
}
