package status

import (
	"bytes"
	"strings"
	"testing"

	"penstock/cmd/penstock/exit"
	penstockv1 "penstock/proto/penstock/v1"
)

func TestVerdict(t *testing.T) {
	engine := func(node, condition, gate, why string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Node: node, Condition: condition, Gate: gate, Why: why}
	}
	open := engine("o", "ok", "ok", "")
	for _, tc := range []struct {
		name    string
		engines []*penstockv1.EngineState
		want    string
		code    int
	}{
		{"none", nil, "no engine is known", exit.OK},
		{"one open", []*penstockv1.EngineState{open}, "the engine is open", exit.OK},
		{"busy is open", []*penstockv1.EngineState{open, engine("a", "ok", "kv_band", "kv 85 % >= 80 %")}, "all 2 engines are open", exit.OK},
		{"full is healthy", []*penstockv1.EngineState{open, engine("n7", "ok", "kv_high", "kv 94 % >= 92 %")}, "1 of 2 engines closed: n7 kv 94 % >= 92 %", exit.OK},
		{"the only one", []*penstockv1.EngineState{engine("n1", "starting", "starting", "")}, "1 of 1 engine closed: n1 starting", exit.OK},
		{"the worst first", []*penstockv1.EngineState{
			open, engine("n7", "stale", "kv_high", "kv 94 % >= 92 %"), engine("n8", "draining", "draining", "draining 3 s"),
			engine("n9", "blind", "blind", "blind 12 s: connection refused"), engine("n2", "gone", "gone", "gone: not heard of for 30 s"),
		}, "4 of 5 engines closed: n2 gone: not heard of for 30 s, n9 blind 12 s: connection refused, n8 draining 3 s, and 1 more", exit.Unhealthy},
		{"stuck", []*penstockv1.EngineState{engine("a", "stuck", "stuck", "stuck 9 s")}, "1 of 1 engine closed: a stuck 9 s", exit.Unhealthy},
		{"down", []*penstockv1.EngineState{engine("a", "engine_down", "engine_down", "")}, "1 of 1 engine closed: a engine_down", exit.Unhealthy},
		{"a GPU gone", []*penstockv1.EngineState{engine("a", "ok", "gpu_lost", "gpu_lost")}, "1 of 1 engine closed: a gpu_lost", exit.Unhealthy},
		{"a condition of tomorrow", []*penstockv1.EngineState{engine("a", "melting", "", "")}, "1 of 1 engine closed: a melting", exit.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, output := range []string{"text", "json"} {
				var out bytes.Buffer
				err := Write(&out, &penstockv1.ClusterResponse{Engines: tc.engines, Problem: "store away"}, output)
				code := exit.Code(err)
				if first, _, _ := strings.Cut(out.String(), "\n"); code != tc.code || output == "text" && first != tc.want || !strings.Contains(out.String(), "store away") {
					t.Errorf("%s: got %q, code %d; want %q, %d", output, out.String(), code, tc.want, tc.code)
				}
			}
		})
	}
}
