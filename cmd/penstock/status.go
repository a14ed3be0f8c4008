package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	penstockv1 "penstock/proto/penstock/v1"
)

// named is how many closed engines the first line of status names.
const named = 3

func newStatus() *cobra.Command {
	var c caller
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say in words how the engines are, the worst first",
		Long: `status asks one agent, or standalone, for every engine it knows. The first line is the verdict and names the
worst; then a row per engine. Closed: it starts nothing now, and why. A full engine is closed and healthy.

Where not all go by the same policy a line says who is behind: which one, by the hash that penstock policy check prints.

Exit code 3 if an engine is blind, stuck, down or gone, 4 if nobody answers at --grpc.`,
		Example: `  penstock status
  penstock status --grpc gpu7:4781
  penstock status -o json | jq '.engines[] | select(.gate != "ok")'
  penstock status -o json | jq .behind      # who does not go by the newest policy
  penstock status lanes --top 20
  penstock status request 5d41402abc4b2a76b9719d911017c592`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkOutput(output), c.load(cmd.Flags())); err != nil {
				return err
			}
			answer, err := call(cmd.Context(), &c, penstockv1.AgentServiceClient.Cluster, &penstockv1.ClusterRequest{})
			if err != nil {
				return err
			}
			return writeStatus(cmd.OutOrStdout(), answer, output)
		},
	}
	c.flags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.AddCommand(newStatusLanes(&c, &output), newStatusRequest(&c, &output))
	return cmd
}

func writeStatus(w io.Writer, answer *penstockv1.ClusterResponse, output string) error {
	engines := answer.GetEngines()
	slices.SortStableFunc(engines, func(a, b *penstockv1.EngineState) int { return cmp.Compare(severity(b), severity(a)) })
	text, sick := verdict(engines)
	var err error
	if output == "json" {
		err = writeStatusJSON(w, answer, text, sick == 0)
	} else {
		err = writeEngines(w, answer, text)
	}
	if err == nil && sick > 0 {
		err = &exitError{exitUnhealthy, fmt.Errorf("%s blind, stuck, down or gone", plural(sick, "engine is", "engines are"))}
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
	text = fmt.Sprintf("%d of %s closed: %s", len(closed), plural(len(engines), "engine", "engines"), strings.Join(closed[:min(len(closed), named)], ", "))
	if more := len(closed) - named; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text, sick
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func writeStatusJSON(w io.Writer, answer *penstockv1.ClusterResponse, text string, healthy bool) error {
	engines := []json.RawMessage{}
	for _, e := range answer.GetEngines() {
		raw, err := rawJSON(e)
		if err != nil {
			return err
		}
		engines = append(engines, raw)
	}
	gateways := []json.RawMessage{}
	for _, g := range answer.GetGateways() {
		raw, err := rawJSON(g)
		if err != nil {
			return err
		}
		gateways = append(gateways, raw)
	}
	policy, err := rawJSON(answer.GetPolicy())
	if err != nil {
		return err
	}
	return writeJSON(w, struct {
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
	t := table(w, "NODE", "STATE", "KV", "RUN", "WAIT", "STARTED", "FREE TOKENS", "STEP", "SEEN", "MODELS", "POLICY", "WHY")
	for _, e := range answer.GetEngines() {
		state := e.GetCondition()
		if severity(e) == 1 {
			state = "closed"
		}
		started, seen := "-", e.GetAgeSeconds()
		if e.GetLocal() {
			started, seen = fmt.Sprint(e.GetInflightRequests()), e.GetSampleAgeSeconds()
		}
		row(t, e.GetNode(), state, fmt.Sprintf("%.0f %%", 100*e.GetKvUsage()), e.GetRunningRequests(), e.GetWaitingRequests(), started,
			e.GetFreeTokens(), ago(e.GetStepSeconds()), ago(seen), cmp.Or(strings.Join(e.GetModels(), ","), "-"), shownPolicy(e.GetPolicy(), newest), cmp.Or(e.GetWhy(), "-"))
	}
	return errors.Join(t.Flush(), writeGateways(w, answer, newest))
}

// table is aligned columns under head.
func table(w io.Writer, head ...any) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row(t, head...)
	return t
}

func row(t *tabwriter.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = t.Write([]byte{'\t'})
		}
		_, _ = fmt.Fprint(t, cell)
	}
	_, _ = t.Write([]byte{'\n'})
}

// ago is a duration for people: two digits are enough. "-" is none.
func ago(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
