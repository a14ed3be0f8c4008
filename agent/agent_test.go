package agent

import (
	"strings"
	"testing"

	"penstock/reason"
	"penstock/response"
)

func TestStream(t *testing.T) {
	n := newNode(t).run()
	m := n.send(n.message(20))
	done := n.outcome(m.ID)
	if done.Kind != response.Done || done.Reason != reason.Finished || done.Node != "node-1" || done.Tries != 1 || done.Usage.Output != 20 {
		t.Errorf("terminal event: got %+v, want Done, finished, node-1, 1 try, 20 tokens", done)
	}
	events := n.of(m.ID)
	var text strings.Builder
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			t.Errorf("event %d: got seq %d, want %d", i, e.Seq, i+1)
		}
		text.Write(e.Payload)
	}
	if events[0].Kind != response.First || events[0].Status != 200 {
		t.Errorf("first event: got %+v, want First with status 200", events[0])
	}
	if got := strings.Count(text.String(), "data: "); got < 21 || !strings.HasSuffix(text.String(), "data: [DONE]\n\n") {
		t.Errorf("relayed: got %d events ending in %q, want at least 21 and [DONE] last", got, text.String()[max(0, text.Len()-40):])
	}
}
