package redis

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/reason"
	"penstock/registry"
)

// TestEngineFormats: entries of neighbouring versions are read, others left out.
func TestEngineFormats(t *testing.T) {
	s := fake(t)
	r := dial(t, s, testConfig(s))
	for node, text := range map[string]string{
		"first":   `{"v":1,"grpc":"a:4781","models":["m"],"state":"blind"}`,
		"further": `{"v":1,"models":["m"],"state":"blind","for_ms":12000,"cause":"connection refused","later":{"x":[1]}}`,
		"unknown": `{"v":1,"models":null,"state":"of a later version"}`,
		"foreign": `{"v":2,"models":["m"],"state":"ok"}`,
		"broken":  `{"v":1,`,
	} {
		if _, err := r.run(t.Context(), "engines", 0, node, text); err != nil {
			t.Fatal(err)
		}
	}
	list, err := r.Engines(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("engines: %+v, %v; want three", list, err)
	}
	for i, want := range []struct {
		node, why string
		state     reason.Reason
	}{{"first", "blind", reason.Blind}, {"further", "blind 13 s: connection refused", reason.Blind}, {"unknown", "starting", reason.Starting}} {
		e := &list[i]
		if why := e.Why(e.Seen.Add(time.Second)); e.Node != want.node || e.State != want.state || why != want.why {
			t.Errorf("%s: got %+v, %q; want %v, %q", want.node, e, why, want.state, want.why)
		}
	}
}

// TestWhyRefusedAtOnce: a call that is not even tried says what the last one that was
// ran into.
func TestWhyRefusedAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	r := dial(t, &server{}, testConfig(&server{addr: l.Addr().String()}))
	for range tripAfter {
		_, err = r.Engines(t.Context())
	}
	if kindOf(err) != failedNetwork {
		t.Fatalf("call %d: %v, want a refused connection", tripAfter, err)
	}
	_, err = r.Engines(t.Context())
	if kindOf(err) != refusedAtOnce || !errors.Is(err, registry.ErrAway) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the next one: %v, want it refused at once with the cause", err)
	}
	if _, why := r.Ready(); !strings.HasPrefix(why, "redis away: ") || !strings.Contains(why, "connection refused") {
		t.Errorf("Ready says %q, want the cause", why)
	}
}
