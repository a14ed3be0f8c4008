package status

import (
	"fmt"
	"io"

	"penstock/cmd/penstock/show"
	penstockv1 "penstock/proto/penstock/v1"
)

// WriteRequest says where the request id is, as output, text or json, has it. In text
// one without a record is an error.
func WriteRequest(w io.Writer, id string, r *penstockv1.GetRequestResponse, output string) error {
	if output == "json" {
		raw, err := show.Raw(r)
		if err != nil {
			return err
		}
		return show.JSON(w, map[string]any{"apiVersion": "penstock/v1", "id": id, "request": raw})
	}
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
		line("  opened  %s ago", show.Ago(r.GetOpenedSeconds()))
		if left := r.GetDeadlineSeconds(); r.GetState() == "queued" {
			line("  must start within %s", show.Ago(max(left, 0)))
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
	line("  runs    on %s for %s, %s, last event %s ago", run.GetNode(), show.Ago(run.GetSeconds()), first, show.Ago(run.GetSilentSeconds()))
	return nil
}
