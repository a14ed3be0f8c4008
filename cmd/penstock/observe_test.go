package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"penstock/cmd/penstock/flags"
	"penstock/policy/apikey"
	"penstock/vllm/vllmtest"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/metrics.golden anew")

// TestMetrics compares what /metrics offers after a few requests with the golden
// list: names, types, help and label sets. Values and the runtime's own are not in it.
func TestMetrics(t *testing.T) {
	e := vllmtest.Start(t)
	keys, err := apikey.Parse([]byte("acme-tenant: secret-key"))
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, func(o *flags.Options) { o.Keys = keys }, e.URL())
	const bearer = "Bearer secret-key"
	for _, body := range []string{completion(20, 4, streamed), completion(20, 4, "")} {
		if r := p.post(body, "Authorization", bearer); r.status != http.StatusOK {
			t.Fatalf("request: %v", r)
		}
	}
	if r := p.post(`{"model":"made-up","prompt":"x"}`, "Authorization", bearer); r.status != http.StatusNotFound {
		t.Errorf("unknown model: %v", r)
	}
	p.until("all of them are counted", func() bool { return p.metric("penstock_requests_total") == 3 })

	_, page := p.page("/metrics")
	for _, no := range []string{"acme-tenant", "secret-key", "made-up"} {
		if bytes.Contains(page, []byte(no)) {
			t.Errorf("%q is on the metrics page", no)
		}
	}
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "penstock_") {
			t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
		}
	}

	got := p.contract()
	const golden = "testdata/metrics.golden"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("metrics differ (-want +got), -rewrite accepts it:\n%s", diff)
	}
}

// contract is what others may rely on: each family with its type and help, and the
// label sets of its series. The node's name is a port, so it is left out.
func (p *process) contract() string {
	var text strings.Builder
	families := p.families()
	names := make([]string, 0, len(families))
	for name := range families {
		if strings.HasPrefix(name, "penstock_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		f := families[name]
		fmt.Fprintf(&text, "%s %s: %s\n", name, strings.ToLower(f.GetType().String()), f.GetHelp())
		var sets []string
		for _, m := range f.GetMetric() {
			sets = append(sets, "\t{"+labels(m)+"}\n")
		}
		slices.Sort(sets)
		if len(sets) > 1 || sets[0] != "\t{}\n" {
			text.WriteString(strings.Join(sets, ""))
		}
	}
	return text.String()
}

func labels(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		if l.GetName() == "node" {
			all = append(all, "node")
			continue
		}
		all = append(all, l.GetName()+"="+l.GetValue())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestDebugState shows the inputs and the reasons of the last verdicts.
func TestDebugState(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t)
	p := startProcess(t, nil, e.URL())
	if r := p.post(completion(20, 4, "")); r.status != http.StatusOK {
		t.Fatalf("request: %v", r)
	}
	e.Break(vllmtest.Asleep)
	p.until("not ready", func() bool { return p.readyz() != "" })
	status, body := p.page("/debug/state")
	var state struct {
		APIVersion string `json:"apiVersion"`
		Engines    map[string]struct {
			Condition string   `json:"condition"`
			Ready     bool     `json:"ready"`
			Models    []string `json:"models"`
			Decisions []struct {
				At      time.Time      `json:"at"`
				Action  string         `json:"action"`
				Reason  string         `json:"reason"`
				Request map[string]any `json:"request"`
			} `json:"decisions"`
		} `json:"engines"`
	}
	if err := json.Unmarshal(body, &state); err != nil || status != http.StatusOK {
		t.Fatalf("/debug/state: %d, %v: %.300s", status, err, body)
	}
	engine, ok := state.Engines[strings.TrimPrefix(e.URL(), "http://")]
	if !ok || state.APIVersion != "penstock/v1" || engine.Condition != "asleep" || engine.Ready || !slices.Equal(engine.Models, []string{"tiny"}) {
		t.Errorf("state: %.600s; want the engine, asleep, not ready, with its model", body)
	}
	if len(engine.Decisions) != 1 || engine.Decisions[0].Action != "start" || engine.Decisions[0].Reason != "ok" || len(engine.Decisions[0].Request) == 0 {
		t.Errorf("decisions: %+v; want one: start, ok, with its inputs", engine.Decisions)
	}
	if bytes.Contains(body, []byte("xxxx")) {
		t.Error("the prompt is in /debug/state")
	}
}

// TestFailuresAreShown: who was refused and whose answer broke is in /debug/state,
// and why the engine is away in every place where somebody asks.
func TestFailuresAreShown(t *testing.T) {
	t.Parallel()
	e := vllmtest.Start(t, vllmtest.WithStep(4*time.Millisecond))
	p := startProcess(t, nil, e.URL())
	if r := p.post(`{"model":"made-up","prompt":"xxxx"}`, "X-Request-Id", "from-alice"); r.status != http.StatusNotFound {
		t.Fatalf("unknown model: %v", r)
	}
	running := p.open(completion(20, 600, streamed))
	e.Stop()
	_, _ = running.rest()
	p.until("readyz names the cause", func() bool { return strings.Contains(p.readyz(), " s: connection refused") })
	if why, want := p.readyz(), "engine "+strings.TrimPrefix(e.URL(), "http://")+": blind "; !strings.Contains(why, want) {
		t.Errorf("readyz: %s; want %q", why, want)
	}
	if r := p.post(completion(20, 4, "")); !strings.Contains(r.body, "(1 known, blind ") || !strings.Contains(r.body, ": connection refused)") {
		t.Errorf("a request without an engine: %v; want the cause", r)
	}
	_, body := p.page("/debug/state")
	type failure struct{ ID, Label, Node, Reason string }
	var state struct {
		Gateway struct{ Refused, Failed []failure }
	}
	if err := json.Unmarshal(body, &state); err != nil {
		t.Fatalf("/debug/state: %v: %.600s", err, body)
	}
	refused, failed := state.Gateway.Refused, state.Gateway.Failed
	if len(refused) != 2 || refused[0].Reason != "no_engine" || refused[1].Reason != "model_not_found" || refused[1].Label != "from-alice" {
		t.Errorf("refused: %+v; want no_engine, and before it model_not_found for from-alice", refused)
	}
	if len(failed) != 1 || failed[0].Reason != "upstream_lost" || failed[0].Node != strings.TrimPrefix(e.URL(), "http://") || failed[0].ID == "" {
		t.Errorf("failed: %+v; want upstream_lost with its node", failed)
	}
	if bytes.Contains(body, []byte("xxxx")) {
		t.Error("a prompt is in /debug/state")
	}
}
