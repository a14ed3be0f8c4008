package gossip

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"
)

const (
	retryEvery = 500 * time.Millisecond // between two tries of seeds that are not members
	greetLeast = time.Second            // see greet: its gaps double from this
	greetMost  = 8 * time.Second        // to this
	maxAddrs   = 256                    // of one seed's name
	tries      = 8                      // seeds contacted at once
)

// joiner brings a node to its seeds and back to them. It contacts only addresses
// that no member has: an island that forms is one as long as its seeds are looked
// up anew.
type joiner struct {
	g      *Gossip
	list   *memberlist.Memberlist
	self   netip.AddrPort
	known  map[string][]netip.AddrPort // the last answer per seed: kept while its name does not resolve
	failed error                       // of the last look-up
	asked  time.Time                   // when it began
	gone   int                         // seeds without a member, in the last round
	warn   time.Time                   // when to say again that this node is alone
	gap    time.Duration               // between two greetings; above greetMost there are no more
	greets time.Time                   // when the next one is due
	next   int                         // the member to greet
}

// run looks whether all seeds are members, and looks them up every JoinEvery, or each
// time while there is no other member: a partition may be over, or all agents may have
// been restarted.
func (j *joiner) run(ctx context.Context) {
	j.gap, j.greets = greetLeast, time.Now().Add(greetLeast)
	for {
		if j.g.isolated.Load() || time.Since(j.asked) >= j.g.cfg.JoinEvery {
			j.lookupAll(ctx)
		}
		err := j.round(ctx)
		if now := time.Now(); j.g.isolated.Load() && !now.Before(j.warn) && ctx.Err() == nil {
			j.warn = now.Add(j.g.cfg.JoinEvery)
			j.g.log.Warn("gossip: isolated: no seed is a member; this node goes on by itself and retries", "join", j.g.cfg.Join, "err", err, "retry_in", retryEvery)
		}
		if now := time.Now(); j.gap <= greetMost && !now.Before(j.greets) {
			j.greet()
			j.gap *= 2
			j.greets = now.Add(j.gap)
		}
		select {
		case <-time.After(min(retryEvery, j.g.cfg.JoinEvery)):
		case <-j.g.reloaded:
			j.gap, j.greets = greetLeast, time.Now()
		case <-ctx.Done():
			return
		}
	}
}

// round contacts the seeds that are not members and returns the last error.
func (j *joiner) round(ctx context.Context) error {
	var (
		all     errgroup.Group
		mu      sync.Mutex // guards the two below
		missing int
		last    = j.failed
	)
	all.SetLimit(tries)
	seeds := j.seeds()
	for _, seed := range seeds {
		if ctx.Err() != nil {
			break
		}
		all.Go(func() error {
			if j.g.table.at(seed) { // told of by a seed before it
				return nil
			}
			_, err := j.list.Join([]string{seed.String()})
			if err == nil {
				j.g.metrics.joined.Inc()
				return nil
			}
			j.g.metrics.unjoined.Inc()
			mu.Lock()
			defer mu.Unlock()
			missing++
			last = err
			return nil
		})
	}
	_ = all.Wait() // no error: they are counted and the last is returned
	alone := j.g.table.len() <= 1
	j.g.isolated.Store(alone && (len(seeds) > 0 || j.failed != nil))
	if missing != j.gone && !alone && ctx.Err() == nil {
		j.g.log.Info("gossip: seeds that are not members changed", "missing", missing, "err", last)
	}
	j.gone = missing
	return last
}

// greet exchanges all that is known with the next member: what the fleet still holds of
// this node's earlier process, its goodbye above all, would keep it out until a member
// happens to choose it for an exchange. Gaps double, since a hundred nodes that start at
// once would be busy with nothing else.
func (j *joiner) greet() {
	members := j.g.table.members()
	for range members {
		j.next++
		if m := members[j.next%len(members)]; m.Name != j.g.cfg.Name {
			_, _ = j.list.Join([]string{m.Addr}) // one that is gone costs nothing but time
			return
		}
	}
}

// lookupAll asks for the addresses behind Join.
func (j *joiner) lookupAll(ctx context.Context) {
	j.asked, j.failed = time.Now(), nil
	for _, seed := range j.g.cfg.Join {
		if found, err := j.lookup(ctx, seed); err != nil {
			j.failed = err
		} else {
			j.known[seed] = found
		}
	}
}

// seeds are the addresses behind Join as last looked up, without this node's own.
func (j *joiner) seeds() (all []netip.AddrPort) {
	for _, seed := range j.g.cfg.Join {
		for _, a := range j.known[seed] {
			if a != j.self && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

func (j *joiner) lookup(ctx context.Context, seed string) ([]netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(seed)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else {
		ctx, cancel := context.WithTimeout(ctx, j.g.cfg.Timeout)
		defer cancel()
		if ips, err = j.g.resolve(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	found := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips[:min(len(ips), maxAddrs)] {
		found = append(found, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return found, nil
}
