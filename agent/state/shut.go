package state

import (
	"fmt"

	"penstock/reason"
	"penstock/scheduler"
)

// Shut says with the figures of v and the marks of cfg what closes the gate: "kv 94 %
// >= 92 %". "" while it is open.
func Shut(v *scheduler.View, cfg *scheduler.Config) string {
	waiting := max(v.Waiting, v.PendingSeq)
	switch v.Gate {
	case reason.OK:
		return ""
	case reason.KVHigh:
		if v.KV < v.StopFrom { // closed before, and not open again yet
			return fmt.Sprintf("kv %s, open again below %s", percent(v.KV), percent(v.OpenBelow))
		}
		return fmt.Sprintf("kv %s >= %s", percent(v.KV), percent(v.StopFrom))
	case reason.KVBand:
		return fmt.Sprintf("kv %s >= %s", percent(v.KV), percent(v.StartBelow))
	case reason.KVForecast:
		return fmt.Sprintf("kv %s, what runs will use %s", percent(v.KV), percent(v.Peak))
	case reason.SeatsFull:
		return fmt.Sprintf("all %d seats (max_num_seqs) are taken", v.Seats)
	case reason.StepsSlow:
		return fmt.Sprintf("steps take %d ms", v.StepTime.Milliseconds())
	case reason.KVCredit:
		return fmt.Sprintf("kv %s and %d tokens started that do not show yet", percent(v.KV), v.Credit)
	case reason.WaitingHigh:
		return fmt.Sprintf("%d waiting in the engine >= %d", waiting, cfg.WaitMax)
	case reason.WaitingSome:
		return fmt.Sprintf("%d waiting in the engine >= %d", waiting, cfg.WaitSome)
	case reason.PrefillBusy:
		return fmt.Sprintf("%d prompt tokens before their first token", v.Pending)
	case reason.Cold:
		return "its speed is not known yet"
	}
	return v.Gate.String()
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
