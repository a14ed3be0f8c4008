package gossip

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestGarbage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		keys    []string
		packet  []byte
		reason  string // of dropped_total
		problem string
	}{
		{"no label", []string{makeKey()}, []byte(strings.Repeat("\x08garbage", 100)), "label", ""},
		{"of another fleet", nil, []byte("\xf4\x05other\x08\x01hello"), "label", ""},
		{"too long", nil, []byte("\xf4\x04test" + strings.Repeat("x", 3000)), "label", ""},
		{"label and nothing", nil, []byte("\xf4\x04test"), "label", ""},
		{"labelled noise, encrypted", []string{makeKey()}, []byte("\xf4\x04test" + strings.Repeat("x", 100)), "", "decrypt"},
		{"labelled noise", nil, []byte("\xf4\x04test\x02xxxxxxxx"), "", "malformed"},
		{"unknown type", nil, []byte("\xf4\x04test\x77xxxxxxxx"), "", "malformed"},
		{"foreign user message", nil, []byte("\xf4\x04test\x08\x63hello"), "frame", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := ""
			if tc.keys != nil {
				file = keyFile(t, tc.keys...)
			}
			all := fleet(t, 2, func(name string, join ...string) Config {
				c := quick(name, join...)
				c.KeyFile = file
				return c
			})
			c, err := net.Dial("udp", all[0].addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for range 2000 {
				if _, err := c.Write(tc.packet); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "it is counted", func() bool {
				return tc.reason != "" && all[0].metric(t, "dropped_total", tc.reason) > 100 ||
					tc.problem != "" && all[0].metric(t, "problems_total", tc.problem) > 100
			})
			if err := all[1].Send([]byte("alive?")); err != nil {
				t.Fatal(err)
			}
			if got := all[0].next(t); got != "alive?" {
				t.Errorf("received %q", got)
			}
			if lines := strings.Count(all[0].out.String(), "\n"); lines > 8 {
				t.Errorf("%d log lines, want few:\n%s", lines, all[0].out)
			}
		})
	}
}

func TestStreamBounds(t *testing.T) {
	t.Parallel()
	n := start(t, quick("n0"))
	eventually(t, "it listens", func() bool { return len(n.Members()) == 1 })
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range maxStreams + 3 {
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	eventually(t, "some are refused", func() bool { return n.metric(t, "dropped_total", "streams") >= 3 })
	// They are cut for their silence, and a member can join.
	late := start(t, quick("late", n.addr))
	eventually(t, "a member joins", func() bool { return converged([]*node{n, late}, 2) })
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	closed := quick("closed")
	closed.CIDRs, closed.Advertise = []string{"10.0.0.0/8"}, "10.0.0.1"
	n := start(t, closed)
	eventually(t, "it runs", func() bool { return len(n.Members()) == 1 })
	if got := n.Members()[0].Addr; !strings.HasPrefix(got, "10.0.0.1:") {
		t.Errorf("address %s, want the advertised one", got)
	}
	outside := start(t, quick("outside", n.addr))
	eventually(t, "a stream is refused", func() bool { return n.metric(t, "dropped_total", "network") > 0 })
	eventually(t, "the other is isolated", func() bool { return outside.metric(t, "isolated", "") == 1 })

	wrong := quick("wrong")
	wrong.CIDRs = []string{"10.0.0.0/8"}
	g, err := New(wrong, &words{}, func([]byte) {}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context(), listenOn(t, "127.0.0.1:0")); err == nil || !strings.Contains(err.Error(), "127.0.0.1 is in none of CIDRs") {
		t.Errorf("Run outside its own networks: %v", err)
	}
}
