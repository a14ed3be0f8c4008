package status

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	penstockv1 "penstock/proto/penstock/v1"
)

func TestStatusLanes(t *testing.T) {
	answer := &penstockv1.LanesResponse{
		Total: 3,
		Classes: []*penstockv1.Lane{
			{Tier: "default", Model: "llama", BacklogRequests: 45, BacklogTokens: 22_500, OldestSeconds: 12.4, RunningRequests: 60, Width: 64, LimitedBy: "kv_high"},
			{Tier: "batch", Model: "llama", RunningRequests: 2, Width: 64},
		},
		Lanes: []*penstockv1.Lane{
			{Tier: "default", Type: "chat", Model: "llama", Tenant: "acme", BacklogRequests: 40, BacklogTokens: 20_000, OldestSeconds: 12.4, RunningRequests: 32, Width: 32, LimitedBy: "lane_width"},
			{Tier: "default", Type: "completion", Model: "llama", Pool: "a100", Tenant: "b\n", BacklogRequests: 4, BacklogTokens: 2_000, OldestSeconds: 0.2, RunningRequests: 1, LimitedBy: "ok"},
		},
	}
	var out bytes.Buffer
	if err := WriteLanes(&out, answer, "text"); err != nil {
		t.Fatal(err)
	}
	want := `TIER     MODEL  BACKLOG  TOKENS  OLDEST  WIDTH USED  LIMITED BY
default  llama  45       22500   12s     60/64       kv_high
batch    llama  0        0       -       2/64        -

TENANT  TIER     TYPE        MODEL  POOL  BACKLOG  TOKENS  OLDEST  WIDTH USED  LIMITED BY
acme    default  chat        llama  -     40       20000   12s     32/32       lane_width
"b\n"   default  completion  llama  a100  4        2000    200ms   1           ok
2 of 3 lanes; --top 3 shows all
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := WriteLanes(&out, answer, "json"); err != nil || !strings.Contains(out.String(), `"limited_by": "lane_width"`) || !strings.Contains(out.String(), `"classes"`) {
		t.Errorf("json: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := WriteLanes(&out, &penstockv1.LanesResponse{Problem: "store away"}, "text"); err != nil || out.String() != "lanes are missing: store away\nnothing waits and nothing runs\n" {
		t.Errorf("nothing: %v, %q", err, out.String())
	}
}
