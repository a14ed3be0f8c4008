package status

import (
	"fmt"
	"io"
	"strings"

	"penstock/cmd/penstock/show"
	"penstock/fleet"
	penstockv1 "penstock/proto/penstock/v1"
)

// newestPolicy is the policy that all should go by, by its first 8 hex digits: the text
// that the process asked has read last, else what most go by; "" = none goes by one.
func newestPolicy(answer *penstockv1.ClusterResponse) (newest string) {
	if p := answer.GetPolicy(); p.GetNewest() != "" {
		return fleet.PolicyText(fleet.Policy(p.GetNewest()))
	}
	times := map[string]int{}
	for _, p := range everyPolicy(answer) {
		if p.hash == "" || p.hash == fleet.PolicyText(0) {
			continue
		}
		if times[p.hash]++; times[p.hash] > times[newest] || times[p.hash] == times[newest] && p.hash < newest {
			newest = p.hash
		}
	}
	return newest
}

// nodePolicy is what one process goes by; "" = not known.
type nodePolicy struct{ node, hash string }

func everyPolicy(answer *penstockv1.ClusterResponse) (all []nodePolicy) {
	for _, e := range answer.GetEngines() {
		all = append(all, nodePolicy{e.GetNode(), e.GetPolicy()})
	}
	for _, g := range answer.GetGateways() {
		all = append(all, nodePolicy{g.GetNode(), g.GetPolicy()})
	}
	return all
}

// behind are the processes known to go by another policy than the newest, or by none.
func behind(answer *penstockv1.ClusterResponse) (nodes []string) {
	newest := newestPolicy(answer)
	for _, p := range everyPolicy(answer) {
		if isBehind(p.hash, newest) {
			nodes = append(nodes, p.node)
		}
	}
	return nodes
}

func isBehind(hash, newest string) bool { return newest != "" && hash != "" && hash != newest }

// shownPolicy is a cell of the table.
func shownPolicy(hash, newest string) string {
	switch {
	case hash == "":
		return "-"
	case isBehind(hash, newest):
		return hash + " behind"
	}
	return hash
}

// writePolicy says who is behind, and why the process asked is.
func writePolicy(w io.Writer, answer *penstockv1.ClusterResponse) {
	if problem := answer.GetPolicy().GetProblem(); problem != "" {
		line, _, _ := strings.Cut(problem, "\n")
		_, _ = fmt.Fprintf(w, "policy, as the process asked has it: %s\n", line)
	}
	late := behind(answer)
	if len(late) == 0 {
		return
	}
	text := strings.Join(late[:min(len(late), named)], ", ")
	if more := len(late) - named; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	_, _ = fmt.Fprintf(w, "%d of %s behind policy %s: %s\n", len(late), show.Plural(len(everyPolicy(answer)), "process is", "processes are"), newestPolicy(answer), text)
}

// writeGateways lists the gateways that gossip, where there are any.
func writeGateways(w io.Writer, answer *penstockv1.ClusterResponse, newest string) error {
	if len(answer.GetGateways()) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(w)
	t := show.Table(w, "GATEWAY", "POLICY", "SEEN")
	for _, g := range answer.GetGateways() {
		show.Row(t, g.GetNode(), shownPolicy(g.GetPolicy(), newest), show.Ago(g.GetAgeSeconds()))
	}
	return t.Flush()
}
