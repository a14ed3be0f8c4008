package gossip

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// drop says where something of ours or theirs ended without being delivered.
type drop int

const (
	dropSize      drop = iota // a message to send is empty or above MaxMessage
	dropSend                  // Send is called faster than it sends
	dropPeer                  // the socket refused a packet to one member
	dropBroadcast             // the broadcast queue is full; see Broadcast for which one goes
	dropReceive               // the receiver is too slow
	dropFrame                 // a received message is none of this version's
	dropState                 // a state is above MaxState, or was refused by Marshal or Merge
	dropNetwork               // from an address outside CIDRs
	dropLabel                 // a packet without this fleet's label, or of a size no member sends
	dropStream                // too many streams at once
	dropEnd
)

var dropNames = [dropEnd]string{"size", "send_queue", "peer", "broadcast_queue", "receive_queue", "frame", "state", "network", "label", "streams"}

type metrics struct {
	in, out  prometheus.Counter // bytes
	drops    [dropEnd]prometheus.Counter
	problems [problemEnd]prometheus.Counter
	joined   prometheus.Counter
	unjoined prometheus.Counter
}

// newMetrics reads the gauges from g at every scrape.
func newMetrics(reg prometheus.Registerer, g *Gossip) (*metrics, error) {
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_gossip_" + name, Help: help}, []string{label})
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_gossip_" + name, Help: help}, read)
	}
	size := counters("bytes_total", "Bytes of packets and streams, dropped ones included.", "direction")
	drops := counters("dropped_total", "Messages, packets, streams and states that ended here undelivered.", "reason")
	problems := counters("problems_total", "What memberlist complained of, by kind.", "problem")
	joins := counters("joins_total", "Attempts to reach a seed that is not a member.", "outcome")
	m := &metrics{
		in: size.WithLabelValues("in"), out: size.WithLabelValues("out"),
		joined: joins.WithLabelValues("ok"), unjoined: joins.WithLabelValues("failed"),
	}
	for d, name := range dropNames {
		m.drops[d] = drops.WithLabelValues(name)
	}
	for p := range kinds {
		m.problems[p] = problems.WithLabelValues(kinds[p].name)
	}
	return m, errors.Join(
		reg.Register(size), reg.Register(drops), reg.Register(problems), reg.Register(joins),
		reg.Register(gauge("members", "Live members, this one included; 0 before Run.", func() float64 { return float64(g.table.len()) })),
		reg.Register(gauge("queue", "Messages waiting to be broadcast.", func() float64 { return float64(g.queue.NumQueued()) })),
		reg.Register(gauge("isolated", "1 while there are seeds and no other member.", func() float64 {
			if g.isolated.Load() {
				return 1
			}
			return 0
		})),
		reg.Register(gauge("health_score", "0 while this node keeps up with its probes, up to 7 while it does not.", func() float64 {
			if list := g.list.Load(); list != nil {
				return float64(list.GetHealthScore())
			}
			return 0
		})),
	)
}

func (m *metrics) drop(d drop) { m.drops[d].Inc() }
