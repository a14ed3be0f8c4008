// Package status says in words, tables and JSON what an agent answers about the fleet.
package status

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	penstockv1 "penstock/proto/penstock/v1"
)

// named is how many closed engines the first line of status names.
const named = 3

// Write says how the engines are, the worst first, as output, text or json, has it. An
// engine that is not healthy is an error with the exit code Unhealthy, after all is said.
func Write(w io.Writer, answer *penstockv1.ClusterResponse, output string) error {
	engines := answer.GetEngines()
	slices.SortStableFunc(engines, func(a, b *penstockv1.EngineState) int { return cmp.Compare(severity(b), severity(a)) })
	text, sick := verdict(engines)
	var err error
	if output == "json" {
		err = writeJSON(w, answer, text, sick == 0)
	} else {
		err = writeEngines(w, answer, text)
	}
	if err == nil && sick > 0 {
		err = exit.With(exit.Unhealthy, fmt.Errorf("%s blind, stuck, down or gone", show.Plural(sick, "engine is", "engines are")))
	}
	return err
}

// severities of conditions and gates; from sickness on an engine is not healthy.
var severities = map[string]int{
	"ok": 0, "stale": 0, "kv_high": 1, "waiting_high": 1, "draining": 2, "asleep": 2, "starting": 3,
	"blind": 4, "stuck": 5, "engine_down": 6, "gpu_lost": 6, "gpu_fault": 6, "gone": 7,
}

const sickness = 4

// severity orders engines, the worst highest: 0 takes work, 1 is full.
func severity(e *penstockv1.EngineState) int {
	n, known := severities[e.GetCondition()]
	if !known { // a later version has it
		n = severities["starting"]
	}
	return max(n, severities[e.GetGate()]) // any other gate opens by itself within moments
}

// verdict is the first line, for engines sorted the worst first. sick is how many are
// not healthy.
func verdict(engines []*penstockv1.EngineState) (text string, sick int) {
	var closed []string
	for _, e := range engines {
		if severity(e) >= sickness {
			sick++
		}
		if severity(e) > 0 {
			closed = append(closed, e.GetNode()+" "+cmp.Or(e.GetWhy(), e.GetCondition()))
		}
	}
	switch {
	case len(engines) == 0:
		return "no engine is known", 0
	case len(closed) == 0 && len(engines) == 1:
		return "the engine is open", 0
	case len(closed) == 0:
		return fmt.Sprintf("all %d engines are open", len(engines)), 0
	}
	text = fmt.Sprintf("%d of %s closed: %s", len(closed), show.Plural(len(engines), "engine", "engines"), strings.Join(closed[:min(len(closed), named)], ", "))
	if more := len(closed) - named; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text, sick
}

func writeJSON(w io.Writer, answer *penstockv1.ClusterResponse, text string, healthy bool) error {
	engines := []json.RawMessage{}
	for _, e := range answer.GetEngines() {
		raw, err := show.Raw(e)
		if err != nil {
			return err
		}
		engines = append(engines, raw)
	}
	gateways := []json.RawMessage{}
	for _, g := range answer.GetGateways() {
		raw, err := show.Raw(g)
		if err != nil {
			return err
		}
		gateways = append(gateways, raw)
	}
	policy, err := show.Raw(answer.GetPolicy())
	if err != nil {
		return err
	}
	return show.JSON(w, struct {
		APIVersion string            `json:"apiVersion"`
		Verdict    string            `json:"verdict"`
		Healthy    bool              `json:"healthy"`
		Problem    string            `json:"problem"`
		Warnings   []string          `json:"warnings"`
		Engines    []json.RawMessage `json:"engines"`
		Gateways   []json.RawMessage `json:"gateways"`
		Policy     json.RawMessage   `json:"policy"`
		Behind     []string          `json:"behind"`
	}{"penstock/v1", text, healthy, answer.GetProblem(), append([]string{}, answer.GetWarnings()...), engines, gateways, policy, append([]string{}, behind(answer)...)})
}

func writeEngines(w io.Writer, answer *penstockv1.ClusterResponse, text string) error {
	_, _ = fmt.Fprintln(w, text)
	if problem := answer.GetProblem(); problem != "" {
		_, _ = fmt.Fprintf(w, "engines may be missing: %s\n", problem)
	}
	for _, warning := range answer.GetWarnings() {
		_, _ = fmt.Fprintf(w, "soon: %s\n", warning)
	}
	writePolicy(w, answer)
	newest := newestPolicy(answer)
	t := show.Table(w, "NODE", "STATE", "KV", "RUN", "WAIT", "STARTED", "FREE TOKENS", "STEP", "SEEN", "MODELS", "POLICY", "WHY")
	for _, e := range answer.GetEngines() {
		state := e.GetCondition()
		if severity(e) == 1 {
			state = "closed"
		}
		started, seen := "-", e.GetAgeSeconds()
		if e.GetLocal() {
			started, seen = fmt.Sprint(e.GetInflightRequests()), e.GetSampleAgeSeconds()
		}
		show.Row(t, e.GetNode(), state, fmt.Sprintf("%.0f %%", 100*e.GetKvUsage()), e.GetRunningRequests(), e.GetWaitingRequests(), started,
			e.GetFreeTokens(), show.Ago(e.GetStepSeconds()), show.Ago(seen), cmp.Or(strings.Join(e.GetModels(), ","), "-"), shownPolicy(e.GetPolicy(), newest), cmp.Or(e.GetWhy(), "-"))
	}
	return errors.Join(t.Flush(), writeGateways(w, answer, newest))
}
