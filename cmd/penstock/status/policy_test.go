package status

import (
	"bytes"
	"strings"
	"testing"

	penstockv1 "penstock/proto/penstock/v1"
)

func TestStatusPolicy(t *testing.T) {
	e := func(node, policy string) *penstockv1.EngineState {
		return &penstockv1.EngineState{Node: node, Policy: policy, Condition: "ok"}
	}
	g := func(node, policy string) *penstockv1.GatewayState {
		return &penstockv1.GatewayState{Node: node, Policy: policy, AgeSeconds: 1}
	}
	const a, b = "a1a1a1a1", "b2b2b2b2"
	for _, tc := range []struct {
		name   string
		answer *penstockv1.ClusterResponse
		want   []string // parts of the text
		behind string   // of the JSON
	}{
		{"an agent of before", &penstockv1.ClusterResponse{Engines: []*penstockv1.EngineState{e("n1", "")}}, []string{" - "}, `"behind": []`},
		{"none", &penstockv1.ClusterResponse{Engines: []*penstockv1.EngineState{e("n1", "none"), e("n2", "none")}}, []string{" none "}, `"behind": []`},
		{
			"all", &penstockv1.ClusterResponse{Policy: &penstockv1.Policy{Hash: a + "00000000", Newest: a + "00000000"}, Engines: []*penstockv1.EngineState{e("n1", a)}, Gateways: []*penstockv1.GatewayState{g("gateway@h/1", a)}},
			[]string{"GATEWAY", "gateway@h/1  " + a},
			`"behind": []`,
		},
		{
			"some", &penstockv1.ClusterResponse{Policy: &penstockv1.Policy{Newest: b + "00000000"}, Engines: []*penstockv1.EngineState{e("n1", b), e("n2", a), e("n3", "")}, Gateways: []*penstockv1.GatewayState{g("gateway@h/1", "none")}},
			[]string{"2 of 4 processes are behind policy " + b + ": n2, gateway@h/1\n", a + " behind", "none behind"},
			"\"behind\": [\n    \"n2\",\n    \"gateway@h/1\"\n  ]",
		},
		{
			"all but the one asked", &penstockv1.ClusterResponse{Policy: &penstockv1.Policy{}, Engines: []*penstockv1.EngineState{e("n1", a), e("n2", a), e("n3", b), e("n4", "none")}},
			[]string{"2 of 4 processes are behind policy " + a + ": n3, n4\n"},
			`"n4"`,
		},
		{
			"a wrong text", &penstockv1.ClusterResponse{Policy: &penstockv1.Policy{Hash: a + "0", Newest: b + "0", Problem: "line 1: tears\n  ^"}, Engines: []*penstockv1.EngineState{e("n1", a)}},
			[]string{"1 of 1 process is behind policy " + b + ": n1\n", "policy, as the process asked has it: line 1: tears\n"},
			`"n1"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var text, json bytes.Buffer
			if err := Write(&text, tc.answer, "text"); err != nil {
				t.Fatal(err)
			}
			if err := Write(&json, tc.answer, "json"); err != nil {
				t.Fatal(err)
			}
			for _, part := range tc.want {
				if !strings.Contains(text.String(), part) {
					t.Errorf("got\n%s\nwant %q", text.String(), part)
				}
			}
			if !strings.Contains(json.String(), tc.behind) || !strings.Contains(json.String(), `"gateways": [`) {
				t.Errorf("got\n%s\nwant %s", json.String(), tc.behind)
			}
			if strings.Contains(text.String(), "behind") != (tc.behind != `"behind": []`) {
				t.Errorf("got\n%s\nand %s", text.String(), tc.behind)
			}
		})
	}
}
