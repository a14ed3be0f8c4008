package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	penstockv1 "penstock/proto/penstock/v1"
)

func newStatusLanes(c *caller, output *string) *cobra.Command {
	var top int32
	cmd := &cobra.Command{
		Use:   "lanes",
		Short: "What waits, by tier and model, and what it waits for",
		Long: `lanes lists what waits in the whole fleet, the longest backlog first: how old the oldest is, how many run of how
many that may (the width), and why the rest waits: no_engine, lane_width, the commonest gate of the engines
(kv_high, prefill_busy, ...), or ok where it starts right now.`,
		Example: `  penstock status lanes
  penstock status lanes --top 5 -o json`,
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
	if answer.GetTotal() == 0 {
		_, err := fmt.Fprintln(w, "nothing waits and nothing runs")
		return err
	}
	t := table(w, "TIER", "MODEL", "BACKLOG", "TOKENS", "OLDEST", "WIDTH USED", "LIMITED BY")
	for _, l := range answer.GetLanes() {
		row(t, l.GetTier(), l.GetModel(), l.GetBacklogRequests(), fmt.Sprintf("%.0f", l.GetBacklogTokens()), ago(l.GetOldestSeconds()),
			fmt.Sprintf("%d/%d", l.GetRunningRequests(), l.GetWidth()), cmp.Or(l.GetLimitedBy(), "-"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if shown, total := len(answer.GetLanes()), int(answer.GetTotal()); shown < total {
		_, err := fmt.Fprintf(w, "%d of %d; --top %d shows all\n", shown, total, total)
		return err
	}
	return nil
}

func writeBacklogJSON(w io.Writer, answer *penstockv1.LanesResponse) error {
	lanes := []json.RawMessage{}
	for _, l := range answer.GetLanes() {
		raw, err := rawJSON(l)
		if err != nil {
			return err
		}
		lanes = append(lanes, raw)
	}
	return writeJSON(w, map[string]any{"apiVersion": "penstock/v1", "total": answer.GetTotal(), "lanes": lanes})
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
