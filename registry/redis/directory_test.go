package redis

import (
	"testing"
	"time"

	"penstock/reason"
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
