package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*Config)
		want string
	}{
		{"defaults", func(*Config) {}, ""},
		{"everything", func(c *Config) {
			c.Join, c.CIDRs, c.Advertise = []string{"a:1", "[::1]:2"}, []string{"10.0.0.0/8", "fd00::/8"}, "10.1.2.3:4"
		}, ""},
		{"no name", func(c *Config) { c.Name = "" }, "Name"},
		{"meta", func(c *Config) { c.Meta = make([]byte, 513) }, "Meta has 513 bytes"},
		{"no label", func(c *Config) { c.Label = "" }, "Label"},
		{"long label", func(c *Config) { c.Label = strings.Repeat("x", 49) }, "Label"},
		{"queue", func(c *Config) { c.Queue = 1 }, "Queue is 1"},
		{"state", func(c *Config) { c.MaxState = 1 << 30 }, "MaxState"},
		{"interval", func(c *Config) { c.GossipEvery = 0 }, "GossipEvery is 0s; set 20ms to 1s"},
		{"seed without a port", func(c *Config) { c.Join = []string{"agents"} }, `Join has "agents"`},
		{"seed with a named port", func(c *Config) { c.Join = []string{"agents:http"} }, "Join"},
		{"network", func(c *Config) { c.CIDRs = []string{"10.0.0.1"} }, "CIDRs"},
		{"advertised name", func(c *Config) { c.Advertise = "agents:1" }, "Advertise"},
		{"advertised nowhere", func(c *Config) { c.Advertise = "0.0.0.0" }, "Advertise"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultConfig()
			c.Name, c.Label = "node", "fleet"
			tc.set(&c)
			err := c.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReachable(t *testing.T) {
	for _, tc := range []struct{ set, bound, want string }{
		{"", "127.0.0.1:5", "127.0.0.1:5"},
		{"10.0.0.1", "0.0.0.0:5", "10.0.0.1:5"},
		{"10.0.0.1:9", "0.0.0.0:5", "10.0.0.1:9"},
		{"fd00::1", "[::]:5", "[fd00::1]:5"},
	} {
		c := Config{Advertise: tc.set}
		set, err := c.advertise()
		if err != nil {
			t.Fatal(err)
		}
		got, err := reachable(set, netip.MustParseAddrPort(tc.bound))
		if err != nil || got.String() != tc.want {
			t.Errorf("reachable(%q, %s) = %s, %v; want %s", tc.set, tc.bound, got, err, tc.want)
		}
	}
	got, err := reachable(netip.AddrPort{}, netip.MustParseAddrPort("0.0.0.0:5"))
	if err == nil && (got.Addr().IsUnspecified() || got.Port() != 5) || err != nil && !strings.Contains(err.Error(), "set Advertise") {
		t.Errorf("reachable by all addresses = %s, %v", got, err)
	}
}

func TestMetricsFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := New(quick("n"), &words{}, func([]byte) {}, slog.New(slog.DiscardHandler), reg); err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[strings.TrimPrefix(f.GetName(), "penstock_gossip_")] = len(f.GetMetric())
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == "" {
				t.Errorf("%s has a series without a name", f.GetName())
			}
		}
	}
	want := map[string]int{
		"members": 1, "queue": 1, "isolated": 1, "health_score": 1,
		"bytes_total": 2, "joins_total": 2, "dropped_total": int(dropEnd), "problems_total": int(problemEnd),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series per metric (-want +got):\n%s", diff)
	}
}

func TestListen(t *testing.T) {
	first := listenOn(t, "127.0.0.1:0")
	defer first.Close()
	if _, err := Listen(first.Addr().String()); err == nil || !strings.Contains(err.Error(), first.Addr().String()) {
		t.Errorf("Listen on a taken port: %v", err)
	}
	if _, err := Listen("nonsense"); err == nil || !strings.Contains(err.Error(), "write host:port") {
		t.Errorf("Listen on nonsense: %v", err)
	}
}

func TestSeen(t *testing.T) {
	s := newSeen(3)
	for i, tc := range []struct {
		id   uint64
		want bool
	}{{1, true}, {2, true}, {1, false}, {3, true}, {4, true}, {1, true}, {3, false}, {2, true}, {4, false}} {
		if got := s.first(tc.id); got != tc.want {
			t.Errorf("step %d: first(%d) = %v, want %v", i, tc.id, got, tc.want)
		}
	}
	if len(s.ids) != 3 || len(s.order) != 3 {
		t.Errorf("%d ids in a ring of %d, want 3", len(s.ids), len(s.order))
	}
}

func FuzzParse(f *testing.F) {
	b, _ := newBroadcast([]byte("payload"))
	for _, seed := range [][]byte{b, appendDirect(nil, []byte("payload")), {}, {broadcast}, {direct}, bytes.Repeat([]byte{direct}, MaxMessage+2)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		kind, id, payload := parse(frame)
		if (kind == 0) != (len(payload) == 0) || len(payload) > MaxMessage {
			t.Fatalf("kind %d with %d bytes", kind, len(payload))
		}
		if kind == direct && !bytes.Equal(appendDirect(nil, payload), frame) {
			t.Fatal("a direct message does not survive")
		}
		if kind == broadcast && (id == 0 && !bytes.Equal(frame[1:9], make([]byte, 8)) || !bytes.Equal(frame[9:], payload)) {
			t.Fatal("a broadcast does not survive")
		}
	})
}

// TestClassify pins the texts of memberlist v0.7.0: they are all it tells.
func TestClassify(t *testing.T) {
	for line, want := range map[string]problem{
		"[DEBUG] memberlist: Stream connection from=1.2.3.4:5":                                                                 problemEnd,
		"[INFO] memberlist: Updating address for left or failed node n from 1.2.3.4:5 to 1.2.3.4:6":                            problemEnd,
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=1.2.3":                      decrypt,
		"[ERR] memberlist: Decrypt packet failed: payload is too small to decrypt: 5 from=1.2.3.4:5":                           decrypt,
		"[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=1.2.3.4:5":                      decrypt,
		"[ERR] memberlist: Push/Pull with n failed: remote error: no installed keys could decrypt the message":                 decrypt,
		"[ERR] memberlist: failed to receive: encryption is configured but remote state is not encrypted from=1.2.3.4:5":       plaintext,
		"[ERR] memberlist: failed to receive: remote state is encrypted and encryption is not configured from=1.2.3.4:5":       plaintext,
		"[ERR] memberlist: discarding stream with unacceptable label \"other\": from=1.2.3.4:5":                                label,
		"[ERR] memberlist: Conflicting address for n. Mine: 1.2.3.4:5 Theirs: 1.2.3.4:6 Old state: 0":                          conflict,
		"[WARN] memberlist: handler queue full, dropping message (8) from=1.2.3.4:5":                                           behind,
		"[WARN] memberlist: Rejected node n (1.2.3.4): 1.2.3.4 is not allowed":                                                 network,
		"[ERR] memberlist: Failed to decode alive message: EOF from=1.2.3.4:5":                                                 malformed,
		"[ERR] memberlist: msg type (119) not supported from=1.2.3.4:5":                                                        malformed,
		"[WARN] memberlist: Got invalid checksum for UDP packet: 1, 2":                                                         malformed,
		"[INFO] memberlist: Suspect n has failed, no acks received":                                                            suspect,
		"[INFO] memberlist: Marking n as failed, suspect timeout reached (1 peer confirmations)":                               failed,
		"[WARN] memberlist: Refuting a suspect message (from: n)":                                                              refuted,
		"[WARN] memberlist: Was able to connect to n over TCP but UDP probes failed, network may be misconfigured":             oneway,
		"[ERR] memberlist: Push/Pull with n failed: dial tcp 1.2.3.4:5: connect: connection refused":                           unreachable,
		"[ERR] memberlist: Failed to send gossip to 1.2.3.4:5: write udp 1.2.3.4:5->1.2.3.4:6: sendto: network is unreachable": unreachable,
		"[WARN] memberlist: Binding to public address without encryption!":                                                     other,
	} {
		if got := classify([]byte(line + "\n")); got != want {
			t.Errorf("%s\nclassified %d, want %d", line, got, want)
		}
	}
}

func TestLogsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{reg: prometheus.NewRegistry(), out: &buffer{}}
		var err error
		n.Gossip, err = New(quick("n"), &words{}, func([]byte) {}, slog.New(slog.NewTextHandler(n.out, nil)), n.reg)
		if err != nil {
			t.Fatal(err)
		}
		flood := []byte("[ERR] memberlist: Decrypt packet failed: no key " + strings.Repeat("x", 1000) + "\n")
		for range 1000 {
			n.logs.Write(flood)
		}
		n.logs.Write([]byte("[WARN] memberlist: Refuting a suspect message (from: n)\n"))
		time.Sleep(logEvery)
		n.logs.Write(flood)
		n.logs.quiet.Store(true)
		n.logs.Write(flood)

		lines := strings.Split(strings.TrimSpace(n.out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[2], "suppressed=999") || len(lines[0]) > 700 {
			t.Errorf("%d lines, want three short ones, the last with suppressed=999:\n%s", len(lines), n.out)
		}
		if got := n.metric(t, "problems_total", "decrypt"); got != 1001 {
			t.Errorf("%v problems counted, want 1001", got)
		}
	})
}

// TestLostMembers: who is no member any more is still told of rows, for ten minutes, or
// until its name or its address is a member again.
func TestLostMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &table{self: "self", log: slog.New(slog.DiscardHandler), nodes: map[string]memberlist.Node{}}
		node := func(name string, host byte) *memberlist.Node {
			return &memberlist.Node{Name: name, Addr: net.IPv4(10, 0, 0, host), Port: 4783}
		}
		check := func(when string, want ...string) {
			t.Helper()
			var got []string
			for _, n := range a.others() {
				got = append(got, n.Name)
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		a.NotifyJoin(node("self", 1))
		a.NotifyJoin(node("b", 2))
		a.NotifyJoin(node("c", 3))
		a.NotifyLeave(node("b", 2))
		a.NotifyLeave(node("c", 3))
		check("two lost", "b", "c")
		if got := len(a.members()); got != 1 {
			t.Errorf("%d members, want this one", got)
		}
		a.NotifyJoin(node("b", 4))
		check("one is back at another address", "b", "c")
		if at := a.others(); !at[0].Addr.Equal(net.IPv4(10, 0, 0, 4)) {
			t.Errorf("the first is at %v, want 10.0.0.4", at[0].Addr)
		}
		a.NotifyJoin(node("d", 3))
		check("another has a lost one's address", "b", "d")
		for i := range 2 * maxLost {
			a.NotifyLeave(node(fmt.Sprint("e", i), byte(i)))
		}
		if got, want := len(a.others()), maxLost+2; got != want {
			t.Errorf("%d others, want %d", got, want)
		}
		time.Sleep(keepLost + time.Second)
		check("later", "b", "d")
	})
}
