package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	penstockv1 "penstock/proto/penstock/v1"
)

func newStatusLanes(c *caller, output *string) *cobra.Command {
	var top int32
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "What waits, lane by lane, and what it waits for",
		Long: `lanes lists what waits in the whole fleet: first by tier and model, then the lanes with the longest backlog. For
each: how old the oldest is, how many run of how many that may (the width), and why the rest waits:
  no_engine                     no engine that takes work serves it
  lane_concurrency, lane_pace   as many of it run, or start per second, as the policy lets
  lane_width                    an engine is free, and all that waits stands behind what runs of the same lane
  kv_high ...                   the commonest gate of the engines that serve it
  ok                            it starts right now
A lane is one tenant's: the list is for operators.`,
		Example: `  penstock status lanes
  penstock status lanes --top 5 -o json | jq '.lanes[] | select(.limited_by == "lane_width")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkOutput(*output), c.load(cmd.Flags())); err != nil {
				return err
			}
			if top < 1 {
				return usage("--top %d: want 1 or more", top)
			}
			answer, err := call(cmd.Context(), c, penstockv1.AgentServiceClient.Lanes, &penstockv1.LanesRequest{Top: top})
			if err != nil {
				return err
			}
			if *output == "json" {
				return writeBacklogJSON(cmd.OutOrStdout(), answer)
			}
			return writeBacklog(cmd.OutOrStdout(), answer)
		},
	}
	cmd.Flags().Int32Var(&top, "top", 20, "at most so many")
	return cmd
}

func writeBacklog(w io.Writer, answer *penstockv1.LanesResponse) error {
	if problem := answer.GetProblem(); problem != "" {
		_, _ = fmt.Fprintf(w, "lanes are missing: %s\n", problem)
	}
	if len(answer.GetClasses()) == 0 && answer.GetTotal() == 0 {
		_, err := fmt.Fprintln(w, "nothing waits and nothing runs")
		return err
	}
	t := table(w, "TIER", "MODEL", "BACKLOG", "TOKENS", "OLDEST", "WIDTH USED", "LIMITED BY")
	for _, l := range answer.GetClasses() {
		row(t, append([]any{l.GetTier(), l.GetModel()}, waits(l)...)...)
	}
	if err := t.Flush(); err != nil || answer.GetTotal() == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = table(w, "TENANT", "TIER", "TYPE", "MODEL", "POOL", "BACKLOG", "TOKENS", "OLDEST", "WIDTH USED", "LIMITED BY")
	for _, l := range answer.GetLanes() {
		tenant := cmp.Or(l.GetTenant(), "-")
		if strings.ContainsFunc(tenant, func(r rune) bool { return !unicode.IsPrint(r) }) {
			tenant = strconv.Quote(tenant)
		}
		row(t, append([]any{tenant, l.GetTier(), l.GetType(), l.GetModel(), cmp.Or(l.GetPool(), "-")}, waits(l)...)...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if shown, total := len(answer.GetLanes()), int(answer.GetTotal()); shown < total {
		_, err := fmt.Fprintf(w, "%d of %d lanes; --top %d shows all\n", shown, total, total)
		return err
	}
	return nil
}

// waits are the cells of what waits.
func waits(l *penstockv1.Lane) []any {
	used := fmt.Sprint(l.GetRunningRequests())
	if l.GetWidth() > 0 {
		used += fmt.Sprintf("/%d", l.GetWidth())
	}
	return []any{l.GetBacklogRequests(), fmt.Sprintf("%.0f", l.GetBacklogTokens()), ago(l.GetOldestSeconds()), used, cmp.Or(l.GetLimitedBy(), "-")}
}

func writeBacklogJSON(w io.Writer, answer *penstockv1.LanesResponse) error {
	shown := map[string]any{"apiVersion": "penstock/v1", "total": answer.GetTotal(), "problem": answer.GetProblem()}
	for name, list := range map[string][]*penstockv1.Lane{"lanes": answer.GetLanes(), "classes": answer.GetClasses()} {
		rows := []json.RawMessage{}
		for _, l := range list {
			raw, err := rawJSON(l)
			if err != nil {
				return err
			}
			rows = append(rows, raw)
		}
		shown[name] = rows
	}
	return writeJSON(w, shown)
}

func newStatusRequest(c *caller, output *string) *cobra.Command {
	return &cobra.Command{
		Use:   "request ID",
		Short: "Where one request is",
		Long: `request shows the record of a request and its run, if the agent asked is the one that runs it. ID is the id of
the log line, 32 hex digits; the x-request-id of a client is the label beside it. Exit code 1 if there is no record.`,
		Example: `  penstock status request 5d41402abc4b2a76b9719d911017c592
  penstock status request 5d41402abc4b2a76b9719d911017c592 --grpc gpu7:4781 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(checkOutput(*output), c.load(cmd.Flags())); err != nil {
				return err
			}
			answer, err := call(cmd.Context(), c, penstockv1.AgentServiceClient.GetRequest, &penstockv1.GetRequestRequest{Id: args[0]})
			if err != nil {
				return err
			}
			if *output == "json" {
				raw, err := rawJSON(answer)
				if err != nil {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), map[string]any{"apiVersion": "penstock/v1", "id": args[0], "request": raw})
			}
			return writeRequest(cmd.OutOrStdout(), args[0], answer)
		},
	}
}

func writeRequest(w io.Writer, id string, r *penstockv1.GetRequestResponse) error {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	run := r.GetRun()
	switch {
	case r.GetProblem() != "":
		line("its record cannot be read: %s", r.GetProblem())
	case r.GetState() == "unknown" && run == nil:
		return fmt.Errorf("no record of %s: it never came in, or it ended more than half a minute ago", id)
	default:
		text := fmt.Sprintf("%s is %s", id, r.GetState())
		if r.GetOwner() != "" {
			text += fmt.Sprintf(" on %s, start %d, attempt %s", r.GetOwner(), r.GetTries(), r.GetAttempt())
		}
		if r.GetCanceled() {
			text += ", cancelled"
		}
		line("%s", text)
		if r.GetModel() != "" {
			line("  lane    %s/%s", r.GetTier(), r.GetModel())
		}
		line("  opened  %s ago", ago(r.GetOpenedSeconds()))
		if left := r.GetDeadlineSeconds(); r.GetState() == "queued" {
			line("  must start within %s", ago(max(left, 0)))
		}
	}
	if run == nil {
		line("  it does not run in the process asked")
		return nil
	}
	first := "no byte relayed yet"
	if run.GetFirst() {
		first = "streaming"
	}
	line("  runs    on %s for %s, %s, last event %s ago", run.GetNode(), ago(run.GetSeconds()), first, ago(run.GetSilentSeconds()))
	return nil
}
