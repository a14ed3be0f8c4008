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
	firstRetry = 500 * time.Millisecond // between two tries of a node that found nobody yet; doubles up to JoinEvery
	maxAddrs   = 256                    // of one seed's name
	tries      = 8                      // seeds contacted at once
)

// joiner brings a node to its seeds and back to them. It contacts only addresses
// that no member has: an island that forms is one as long as its seeds are looked
// up anew.
type joiner struct {
	g     *Gossip
	list  *memberlist.Memberlist
	self  netip.AddrPort
	known map[string][]netip.AddrPort // the last answer per seed: kept while its name does not resolve
	gone  int                         // seeds without a member, as last logged
}

// run looks every JoinEvery; more often while there is no other member.
func (j *joiner) run(ctx context.Context) {
	retry := firstRetry
	for {
		err := j.round(ctx)
		wait := j.g.cfg.JoinEvery
		if j.g.isolated.Load() {
			retry = min(retry, wait)
			wait, retry = retry, 2*retry
			if ctx.Err() == nil {
				j.g.log.Warn("gossip: isolated: no seed is a member; this node goes on by itself and retries", "join", j.g.cfg.Join, "err", err, "retry_in", wait)
			}
		} else {
			retry = firstRetry
		}
		select {
		case <-time.After(wait):
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
		last    error
	)
	all.SetLimit(tries)
	seeds, err := j.seeds(ctx)
	last = err
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
	j.g.isolated.Store(alone && (len(seeds) > 0 || err != nil))
	if missing != j.gone && !alone && ctx.Err() == nil {
		j.gone = missing
		j.g.log.Info("gossip: seeds that are not members changed", "missing", missing, "err", last)
	}
	return last
}

// seeds are the addresses behind Join, without this node's own.
func (j *joiner) seeds(ctx context.Context) (all []netip.AddrPort, last error) {
	for _, seed := range j.g.cfg.Join {
		found, err := j.lookup(ctx, seed)
		if err != nil {
			last = err
		} else {
			j.known[seed] = found
		}
		for _, a := range j.known[seed] {
			if a != j.self && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all, last
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
